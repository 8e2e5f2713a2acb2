# A cluster of Google Kubernetes Engine for the jobs that `shardline manifests` prints. README.md says how.

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
  region  = var.region
}

# What pods act as, by Workload Identity: reading and writing the bucket.
resource "google_service_account" "runner" {
  account_id   = "${var.name}-runner"
  display_name = "Pods of ${var.name}"
}

resource "google_storage_bucket_iam_member" "runner" {
  for_each = toset(["roles/storage.objectUser", "roles/storage.legacyBucketReader"])
  bucket   = var.bucket
  role     = each.key
  member   = google_service_account.runner.member
}

resource "google_service_account_iam_member" "pods" {
  service_account_id = google_service_account.runner.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.project}.svc.id.goog[${var.namespace}/${google_service_account.runner.account_id}]"
  depends_on         = [google_container_cluster.this]
}

# What machines act as: pulling images, writing logs and metrics.
resource "google_service_account" "nodes" {
  account_id   = "${var.name}-nodes"
  display_name = "Machines of ${var.name}"
}

resource "google_project_iam_member" "nodes" {
  for_each = toset(["roles/container.defaultNodeServiceAccount", "roles/artifactregistry.reader"])
  project  = var.project
  role     = each.key
  member   = google_service_account.nodes.member
}

resource "google_container_cluster" "this" {
  name                     = var.name
  location                 = var.region
  remove_default_node_pool = true
  initial_node_count       = 1
  deletion_protection      = false

  release_channel {
    channel = "REGULAR"
  }
  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }
}

# One small machine for the cluster's own pods, and for the controllers of JobSet, Trainer and Kueue.
resource "google_container_node_pool" "system" {
  name           = "system"
  cluster        = google_container_cluster.this.id
  node_count     = 1
  node_locations = [var.zones[0]]

  node_config {
    machine_type    = "e2-standard-4"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# For the stage shard: none while no pod asks for one.
resource "google_container_node_pool" "cpu" {
  name           = "cpu"
  cluster        = google_container_cluster.this.id
  node_locations = var.zones

  autoscaling {
    total_min_node_count = 0
    total_max_node_count = 4
    location_policy      = "ANY"
  }

  node_config {
    machine_type    = "e2-standard-8"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# GPU machines: none while no pod asks for one.
resource "google_container_node_pool" "gpu" {
  for_each       = var.gpu_pools
  name           = each.key
  cluster        = google_container_cluster.this.id
  node_locations = var.zones

  autoscaling {
    total_min_node_count = 0
    total_max_node_count = each.value.max_machines
    location_policy      = "ANY"
  }

  node_config {
    machine_type    = each.value.machine_type
    spot            = each.value.spot
    disk_size_gb    = 200
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    guest_accelerator {
      type  = each.value.accelerator_type
      count = each.value.accelerator_count
      gpu_driver_installation_config {
        gpu_driver_version = "LATEST"
      }
    }
    gvnic {
      enabled = true
    }
    workload_metadata_config {
      mode = "GKE_METADATA"
    }
    dynamic "taint" {
      for_each = each.value.spot ? [true] : []
      content {
        key    = "cloud.google.com/gke-spot"
        value  = "true"
        effect = "NO_SCHEDULE"
      }
    }
  }
}

output "credentials" {
  description = "Points kubectl at the cluster."
  value       = "gcloud container clusters get-credentials ${var.name} --project ${var.project} --region ${var.region}"
}

output "service_account" {
  description = "Key cloud.service_account of the configuration."
  value       = google_service_account.runner.email
}
