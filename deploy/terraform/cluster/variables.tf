variable "project" {
  description = "Id of a project that exists, with a billing account."
  type        = string
}

variable "zone" {
  description = "Zone of the machines."
  type        = string
  default     = "us-central1-a"
}

variable "name" {
  description = "Name of the group; its machines are NAME-0, NAME-1, ..."
  type        = string
  validation {
    condition     = can(regex("^[a-z][-a-z0-9]{4,23}[a-z0-9]$", var.name))
    error_message = "name has 6 to 25 lower-case letters, digits and hyphens, as a service account's id."
  }
}

variable "bucket" {
  description = "Bucket of shards and results; the command names folders in it."
  type        = string
}

variable "image" {
  description = "Image of the stage by its digest: cloud.images.gpu of `shardline images build`."
  type        = string
  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", var.image))
    error_message = "image ends in @sha256: and 64 hex digits: a tag may move while the machines run."
  }
}

variable "command" {
  description = "Command of the stage: command and args that `shardline manifests` prints."
  type        = list(string)
}

variable "machine_type" {
  description = "Machine type; GPUs of n1 machines are named beside it."
  type        = string
  default     = "g2-standard-12"
  validation {
    condition     = !can(regex("^(ct|tpu)", var.machine_type))
    error_message = "A TPU: on it nothing of this was tried, and TensorRT has no TPU. Take a machine with NVIDIA GPUs."
  }
  validation {
    condition     = !can(regex("^(a3-(highgpu-8g|megagpu|ultragpu)|a4)", var.machine_type)) || var.nodes == 1
    error_message = "Several A3 or A4 machines need networks between their GPUs, which this module does not make: take one machine, or Google's Cluster Toolkit."
  }
}

variable "accelerator_type" {
  description = "GPU of an n1 machine, e.g. nvidia-tesla-t4; empty: the machine type's own."
  type        = string
  default     = ""
}

variable "accelerator_count" {
  description = "Number of GPUs of an n1 machine."
  type        = number
  default     = 1
}

variable "nodes" {
  description = "Number of machines."
  type        = number
  default     = 1
}

variable "spot" {
  description = "Whether Google may take machines away, for a lower price; the group makes them again."
  type        = bool
  default     = true
}

variable "max_hours" {
  description = "Hours after the apply at which the machines end the group, whatever they do."
  type        = number
  default     = 24
}

variable "env" {
  description = "Further variables of the stage: resources.env of the configuration."
  type        = map(string)
  default     = {}
}

variable "start" {
  description = "Any other number starts the same command again, and its time anew."
  type        = number
  default     = 1
}
