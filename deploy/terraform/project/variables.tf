variable "project" {
  description = "Id of a project that exists, with a billing account."
  type        = string
}

variable "region" {
  description = "Region of the bucket, the images and all jobs."
  type        = string
  default     = "us-central1"
}

variable "bucket" {
  description = "Name of the bucket to make; names are shared by all of Google Cloud."
  type        = string
}

variable "mail" {
  description = "E-mail address of the user who submits, and who gets mail at 50, 90 and 100 % of the budget."
  type        = string
}

variable "monthly_budget" {
  description = "Amount per month in whole units of the billing account's currency. It sends mail and stops nothing."
  type        = number
  default     = 200
}
