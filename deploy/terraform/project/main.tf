# What a line of Shardline needs in a project of Google Cloud: APIs, bucket, images, accounts, roles, budget.
# README.md says what each role is for.

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
  project               = var.project
  region                = var.region
  user_project_override = true # budgets count their requests on a project
  billing_project       = var.project
}

data "google_project" "this" {
  project_id = var.project
  depends_on = [google_project_service.api]
}

locals {
  apis = [
    "aiplatform", "artifactregistry", "billingbudgets", "cloudbilling", "cloudbuild",
    "cloudresourcemanager", "compute", "dataflow", "iam", "iamcredentials", "logging", "monitoring",
    "serviceusage", "storage",
  ]
  runner = google_service_account.runner.member
  build  = google_service_account.build.member
  user   = "user:${var.mail}"

  # Roles on the project, by principal.
  project_roles = {
    runner = ["roles/aiplatform.user", "roles/dataflow.admin", "roles/dataflow.worker", "roles/logging.logWriter"]
    build  = ["roles/logging.logWriter"]
    user = [
      "roles/aiplatform.user", "roles/cloudbuild.builds.editor", "roles/dataflow.developer", "roles/logging.viewer", "roles/serviceusage.serviceUsageConsumer",
    ]
  }
  bucket_roles = {
    runner = ["roles/storage.objectUser", "roles/storage.legacyBucketReader"]
    build  = ["roles/storage.objectViewer"]
    user   = ["roles/storage.objectUser", "roles/storage.legacyBucketReader"]
  }
  repository_roles = {
    runner = "roles/artifactregistry.reader"
    build  = "roles/artifactregistry.writer"
    user   = "roles/artifactregistry.writer"
  }
  members = { runner = local.runner, build = local.build, user = local.user }

  on_project = merge([for who, roles in local.project_roles : { for role in roles : "${who} ${role}" => [who, role] }]...)
  on_bucket  = merge([for who, roles in local.bucket_roles : { for role in roles : "${who} ${role}" => [who, role] }]...)
}

resource "google_project_service" "api" {
  for_each           = toset(local.apis)
  service            = "${each.key}.googleapis.com"
  disable_on_destroy = false
}

resource "google_storage_bucket" "line" {
  name                        = var.bucket
  location                    = upper(var.region)
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  depends_on                  = [google_project_service.api]

  # No rule by age for what a line has made: it would delete shards in use.
  lifecycle_rule {
    action { type = "AbortIncompleteMultipartUpload" }
    condition { age = 7 }
  }
  lifecycle_rule {
    action { type = "Delete" }
    condition {
      age            = 30
      matches_prefix = ["dataflow/temp/"]
    }
  }
}

resource "google_artifact_registry_repository" "images" {
  location      = var.region
  repository_id = "shardline"
  format        = "DOCKER"
  depends_on    = [google_project_service.api]
}

resource "google_service_account" "runner" {
  account_id   = "shardline-runner"
  display_name = "Jobs of Shardline and workers of Dataflow"
  depends_on   = [google_project_service.api]
}

resource "google_service_account" "build" {
  account_id   = "shardline-build"
  display_name = "Image builds of Shardline"
  depends_on   = [google_project_service.api]
}

resource "google_project_iam_member" "role" {
  for_each = local.on_project
  project  = var.project
  member   = local.members[each.value[0]]
  role     = each.value[1]
}

resource "google_storage_bucket_iam_member" "role" {
  for_each = local.on_bucket
  bucket   = google_storage_bucket.line.name
  member   = local.members[each.value[0]]
  role     = each.value[1]
}

resource "google_artifact_registry_repository_iam_member" "role" {
  for_each   = local.repository_roles
  location   = var.region
  repository = google_artifact_registry_repository.images.name
  member     = local.members[each.key]
  role       = each.value
}

# Whoever starts a job that acts as an account needs to be allowed to act as it.
resource "google_service_account_iam_member" "acts_as_runner" {
  for_each           = { runner = local.runner, user = local.user }
  service_account_id = google_service_account.runner.name
  member             = each.value
  role               = "roles/iam.serviceAccountUser"
}

resource "google_service_account_iam_member" "acts_as_build" {
  service_account_id = google_service_account.build.name
  member             = local.user
  role               = "roles/iam.serviceAccountUser"
}

resource "google_monitoring_notification_channel" "mail" {
  display_name = "Shardline budget"
  type         = "email"
  labels       = { email_address = var.mail }
  depends_on   = [google_project_service.api]
}

resource "google_billing_budget" "month" {
  billing_account = data.google_project.this.billing_account
  display_name    = "shardline ${var.project}"
  depends_on      = [google_project_service.api]

  budget_filter {
    projects = ["projects/${data.google_project.this.number}"]
  }
  amount {
    specified_amount { units = tostring(var.monthly_budget) }
  }
  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1.0]
    content { threshold_percent = threshold_rules.value }
  }
  all_updates_rule {
    monitoring_notification_channels = [google_monitoring_notification_channel.mail.id]
  }
}

output "configuration" {
  description = "Keys for the configuration of a line; `shardline init` writes the same names."
  value = {
    "run.root"                   = "gs://${google_storage_bucket.line.name}/lines"
    "cloud.project"              = var.project
    "cloud.region"               = var.region
    "cloud.service_account"      = google_service_account.runner.email
    "cloud.images.repository"    = "${var.region}-docker.pkg.dev/${var.project}/shardline"
    "cloud.images.build_account" = google_service_account.build.email
  }
}
