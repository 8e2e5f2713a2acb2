# Spot machines that run one stage together without a person, come back after a preemption, and end at size 0.
# README.md says how, and what was never tried.

terraform {
  required_version = ">= 1.9" # a validation refers to another variable
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
}

data "google_compute_image" "deep_learning" {
  family  = "common-cu129-ubuntu-2404-nvidia-580"
  project = "deeplearning-platform-release"
}

# What the machines pull, read and write, and the end of their own group.
resource "google_service_account" "this" {
  account_id   = var.name
  display_name = "Machines of ${var.name}"
}

resource "google_storage_bucket_iam_member" "this" {
  bucket = var.bucket
  role   = "roles/storage.objectUser"
  member = google_service_account.this.member
}

resource "google_project_iam_member" "this" {
  for_each = toset(["roles/artifactregistry.reader", "roles/logging.logWriter"])
  project  = var.project
  role     = each.key
  member   = google_service_account.this.member
}

resource "google_project_iam_custom_role" "resize" {
  role_id     = "resize_${replace(var.name, "-", "_")}"
  title       = "Resizes managed instance groups"
  permissions = ["compute.instanceGroupManagers.update"]
}

resource "google_project_iam_member" "resize" {
  project = var.project
  role    = google_project_iam_custom_role.resize.id
  member  = google_service_account.this.member
}

resource "google_compute_network" "this" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "this" {
  name                     = var.name
  network                  = google_compute_network.this.id
  region                   = local.region
  ip_cidr_range            = "10.20.0.0/24"
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

resource "google_compute_firewall" "between_machines" {
  name          = "${var.name}-between-machines"
  network       = google_compute_network.this.id
  source_ranges = [google_compute_subnetwork.this.ip_cidr_range]
  allow {
    protocol = "tcp"
  }
}

resource "google_compute_instance_template" "this" {
  name_prefix  = "${var.name}-"
  machine_type = var.machine_type

  disk {
    boot         = true
    source_image = data.google_compute_image.deep_learning.self_link
    disk_size_gb = 200
    disk_type    = can(regex("^(a3-ultragpu|a4|g4|n4)", var.machine_type)) ? "hyperdisk-balanced" : "pd-balanced"
  }

  dynamic "guest_accelerator" {
    for_each = var.accelerator_type == "" ? [] : [var.accelerator_type]
    content {
      type  = guest_accelerator.value
      count = var.accelerator_count
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
    instance_termination_action = var.spot ? "DELETE" : null
  }

  service_account {
    email  = google_service_account.this.email
    scopes = ["cloud-platform"]
  }

  metadata = {
    enable-oslogin = "TRUE"
    startup-script = file("${path.module}/startup.sh")
    run-stage      = file("${path.module}/run_stage.py")
    stage = jsonencode({
      group    = var.name
      nodes    = var.nodes
      image    = var.image
      command  = var.command
      env      = var.env
      deadline = terraform_data.deadline.output
    })
  }

  lifecycle {
    create_before_destroy = true
  }
}

# The time counts from the apply that set the command.
resource "terraform_data" "deadline" {
  input            = timeadd(timestamp(), "${var.max_hours}h")
  triggers_replace = [var.command, var.image, var.nodes, var.env, var.max_hours, var.start]
  lifecycle {
    ignore_changes = [input]
  }
}

resource "google_compute_instance_group_manager" "this" {
  name               = var.name
  base_instance_name = var.name
  zone               = var.zone

  version {
    instance_template = google_compute_instance_template.this.self_link_unique
  }

  lifecycle {
    ignore_changes = [target_size] # the machines set it to 0
  }
}

# Fixed names, by which the machines know their number and find the first one.
resource "google_compute_per_instance_config" "machine" {
  count                            = var.nodes
  zone                             = var.zone
  instance_group_manager           = google_compute_instance_group_manager.this.name
  name                             = "${var.name}-${count.index}"
  remove_instance_on_destroy       = true
  remove_instance_state_on_destroy = true

  lifecycle {
    replace_triggered_by = [terraform_data.deadline]
  }
  # Without them a machine that is up at once cannot pull its image, and has no right to end its group.
  depends_on = [
    google_compute_router_nat.this, google_project_iam_member.resize, google_project_iam_member.this,
    google_storage_bucket_iam_member.this,
  ]
}

output "logs" {
  description = "What the first machine prints."
  value       = "gcloud compute instances get-serial-port-output ${var.name}-0 --project ${var.project} --zone ${var.zone}"
}
