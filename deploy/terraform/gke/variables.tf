variable "project" {
  description = "Id of a project that exists, with a billing account."
  type        = string
}

variable "region" {
  description = "Region of the cluster."
  type        = string
  default     = "us-central1"
}

variable "zones" {
  description = "Zones of its machines: those that have the GPUs."
  type        = list(string)
  default     = ["us-central1-a"]
}

variable "name" {
  description = "Name of the cluster."
  type        = string
  default     = "shardline"
  validation {
    condition     = can(regex("^[a-z][-a-z0-9]{1,20}[a-z0-9]$", var.name))
    error_message = "name has 3 to 22 lower-case letters, digits and hyphens: ids of service accounts begin with it."
  }
}

variable "bucket" {
  description = "Bucket of data and results, which exists."
  type        = string
}

variable "namespace" {
  description = "Namespace of the jobs."
  type        = string
  default     = "default"
}

variable "gpu_pools" {
  description = "Pools of GPU machines by name; none runs while no pod asks for one."
  type = map(object({
    machine_type      = string
    accelerator_type  = string
    accelerator_count = number
    spot              = bool
    max_machines      = number
  }))
  default = {
    l4 = { machine_type = "g2-standard-12", accelerator_type = "nvidia-l4", accelerator_count = 1, spot = true, max_machines = 4 }
  }
  validation {
    condition     = alltrue([for pool in values(var.gpu_pools) : !can(regex("^(ct|tpu)", pool.machine_type))])
    error_message = "A TPU: on it nothing of this was tried, and TensorRT has no TPU. Take machines with NVIDIA GPUs."
  }
}
