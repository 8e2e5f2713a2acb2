#!/bin/bash
# Runs as root at each start: installs the program that runs the stage, from the machine's metadata.
set -euo pipefail

cat > /etc/systemd/system/run-stage.service << UNIT
[Unit]
Description=Runs a stage of Shardline
After=docker.service network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/python3 /usr/local/bin/run_stage.py
Environment=HOME=/root PYTHONUNBUFFERED=1
StandardOutput=journal+console
StandardError=journal+console
Restart=on-failure
RestartSec=10
TimeoutStopSec=30
UNIT
curl --silent --fail --retry 30 --retry-all-errors --header "Metadata-Flavor: Google" --output /usr/local/bin/run_stage.py \
  "http://metadata.google.internal/computeMetadata/v1/instance/attributes/run-stage"
systemctl daemon-reload
systemctl start run-stage.service
