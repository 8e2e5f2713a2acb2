# A GPU machine for interactive work that stops by itself. README.md says how to log in and what it costs.

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 8.0"
    }
  }
}

provider "google" {
  project = var.project
  zone    = var.zone
}

locals {
  region = join("-", slice(split("-", var.zone), 0, 2))
  machines = {
    t4   = { type = "n1-standard-8", accelerator = "nvidia-tesla-t4" }
    l4   = { type = "g2-standard-8", accelerator = null }
    a100 = { type = "a2-highgpu-1g", accelerator = null }
    h100 = { type = "a3-highgpu-1g", accelerator = null }
  }
  machine = local.machines[var.gpu]
  user    = "user:${var.mail}"
}

data "google_compute_image" "deep_learning" {
  family  = var.image_family
  project = "deeplearning-platform-release"
}

# The machine has no external address: it is reached through IAP, and reaches the internet through NAT.
resource "google_compute_network" "this" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "this" {
  name                     = var.name
  network                  = google_compute_network.this.id
  region                   = local.region
  ip_cidr_range            = "10.10.0.0/24"
  private_ip_google_access = true
}

resource "google_compute_router" "this" {
  name    = var.name
  network = google_compute_network.this.id
  region  = local.region
}

resource "google_compute_router_nat" "this" {
  name                               = var.name
  router                             = google_compute_router.this.name
  region                             = local.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}

resource "google_compute_firewall" "ssh_through_iap" {
  name          = "${var.name}-ssh-through-iap"
  network       = google_compute_network.this.id
  source_ranges = ["35.235.240.0/20"] # https://cloud.google.com/iap/docs/using-tcp-forwarding
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_service_account" "this" {
  account_id   = var.name
  display_name = "Workstation ${var.name}"
}

resource "google_storage_bucket_iam_member" "machine" {
  count  = var.bucket == "" ? 0 : 1
  bucket = var.bucket
  role   = "roles/storage.objectUser"
  member = google_service_account.this.member
}

resource "google_service_account_iam_member" "user" {
  service_account_id = google_service_account.this.name
  role               = "roles/iam.serviceAccountUser"
  member             = local.user
}

resource "google_project_iam_member" "user" {
  for_each = toset(["roles/compute.osAdminLogin", "roles/compute.viewer", "roles/iap.tunnelResourceAccessor"])
  project  = var.project
  role     = each.key
  member   = local.user
}

# Starting and stopping this machine, and no other.
resource "google_compute_instance_iam_member" "user" {
  zone          = var.zone
  instance_name = google_compute_instance.this.name
  role          = "roles/compute.instanceAdmin.v1"
  member        = local.user
}

resource "google_compute_disk" "data" {
  name     = "${var.name}-data"
  type     = "pd-balanced"
  size     = var.disk_gb
  snapshot = var.snapshot == "" ? null : var.snapshot
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [snapshot]
  }
}

resource "google_compute_instance" "this" {
  name                      = var.name
  machine_type              = local.machine.type
  allow_stopping_for_update = true

  boot_disk {
    initialize_params {
      image = data.google_compute_image.deep_learning.self_link
      size  = 100
      type  = "pd-balanced"
    }
  }

  attached_disk {
    source      = google_compute_disk.data.id
    device_name = "data"
  }

  dynamic "guest_accelerator" {
    for_each = local.machine.accelerator == null ? [] : [local.machine.accelerator]
    content {
      type  = guest_accelerator.value
      count = 1
    }
  }

  network_interface {
    subnetwork = google_compute_subnetwork.this.id
    nic_type   = "GVNIC"
  }

  scheduling {
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    preemptible                 = var.spot
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = var.spot || var.max_hours > 0 ? "STOP" : null
    dynamic "max_run_duration" {
      for_each = var.max_hours > 0 ? [var.max_hours * 3600] : []
      content {
        seconds = max_run_duration.value
      }
    }
    dynamic "on_instance_stop_action" {
      for_each = var.gpu == "h100" ? [true] : [] # its local SSDs, which a machine that stops cannot keep
      content {
        discard_local_ssd = on_instance_stop_action.value
      }
    }
  }

  shielded_instance_config {
    enable_secure_boot = false # NVIDIA's driver modules are not signed
  }

  service_account {
    email  = google_service_account.this.email
    scopes = ["cloud-platform"]
  }

  metadata = {
    enable-oslogin = "TRUE"
    startup-script = file("${path.module}/startup.sh")
    idle-agent     = file("${path.module}/idle_agent.py")
    idle-minutes   = tostring(var.idle_minutes)
  }

  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image] # a newer image would replace the machine
    precondition {
      condition     = var.gpu != "h100" || var.spot
      error_message = "a3-highgpu-1g is sold as spot or flex-start alone: set spot = true, or gpu to t4, l4 or a100."
    }
  }

  depends_on = [google_compute_router_nat.this]
}

output "login" {
  description = "Log in; -- -L 8080:localhost:8080 behind it forwards JupyterLab."
  value       = "gcloud compute ssh ${var.name} --project ${var.project} --zone ${var.zone} --tunnel-through-iap"
}

output "start" {
  description = "Start the machine after it was stopped."
  value       = "gcloud compute instances start ${var.name} --project ${var.project} --zone ${var.zone}"
}
