variable "project" {
  description = "Id of a project that exists, with a billing account."
  type        = string
}

variable "zone" {
  description = "Zone of the machine and its disk."
  type        = string
  default     = "us-central1-a"
}

variable "name" {
  description = "Name of the machine, its network and its service account."
  type        = string
  default     = "workstation"
  validation {
    condition     = can(regex("^[a-z][-a-z0-9]{4,23}[a-z0-9]$", var.name))
    error_message = "name has 6 to 25 lower-case letters, digits and hyphens, as a service account's id."
  }
}

variable "mail" {
  description = "Google account that may log in and act as the machine's service account."
  type        = string
}

variable "bucket" {
  description = "Bucket that the machine reads and writes; empty: none."
  type        = string
  default     = ""
}

variable "gpu" {
  description = "GPU of the machine: t4, l4, a100 or h100."
  type        = string
  default     = "t4"
  validation {
    condition     = contains(["t4", "l4", "a100", "h100"], var.gpu)
    error_message = "gpu is t4, l4, a100 or h100. V100, P100 and P4 are left out: the images have CUDA 12.9 and 13 drivers, and CUDA 13 has no code for them. A TPU needs a TPU VM, which this module does not make."
  }
}

variable "spot" {
  description = "Whether Google may take the machine away, for a lower price."
  type        = bool
  default     = true
}

variable "image_family" {
  description = "Family of Deep Learning VM images (project deeplearning-platform-release)."
  type        = string
  default     = "common-cu129-ubuntu-2404-nvidia-580"
  validation {
    condition = contains([
      "common-cu129-ubuntu-2204-nvidia-580", "common-cu129-ubuntu-2404-nvidia-580",
      "pytorch-2-9-cu129-ubuntu-2204-nvidia-580", "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
    ], var.image_family)
    error_message = "image_family is {common,pytorch-2-9}-cu129-ubuntu-{2204,2404}-nvidia-580: Google keeps these alone up to date (2026-04-10). Older families get no fixes or are deleted."
  }
}

variable "disk_gb" {
  description = "Size of the disk at /data, which outlives the machine."
  type        = number
  default     = 100
}

variable "snapshot" {
  description = "Snapshot that a new disk begins with, from another zone; empty: an empty disk."
  type        = string
  default     = ""
}

variable "max_hours" {
  description = "Hours after which Compute Engine stops the machine, whatever runs on it: at most 120 days. 0: never."
  type        = number
  default     = 12
  validation {
    condition     = var.max_hours == 0 || (var.max_hours >= 1 && var.max_hours <= 2880)
    error_message = "max_hours is 0 (no limit) or 1 to 2880."
  }
}

variable "idle_minutes" {
  description = "Minutes without activity after which the idle agent stops the machine; it warns five minutes before. 0: no agent."
  type        = number
  default     = 30
  validation {
    condition     = var.idle_minutes == 0 || var.idle_minutes >= 10
    error_message = "idle_minutes is 0 (no agent) or at least 10."
  }
}
