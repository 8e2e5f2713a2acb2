#!/bin/bash
# Runs as root at each start: installs the idle agent from the machine's metadata, and mounts the disk at /data.
set -euo pipefail

attribute() {
  curl --silent --fail --retry 30 --retry-all-errors --header "Metadata-Flavor: Google" \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# First: a disk that cannot be mounted must not keep the machine up for ever.
minutes=$(attribute idle-minutes)
if [ "$minutes" = 0 ]; then
  systemctl disable --now idle-agent.service 2> /dev/null || true
else
  attribute idle-agent > /usr/local/bin/idle_agent.py
  cat > /etc/systemd/system/idle-agent.service << UNIT
[Unit]
Description=Stops this machine after $minutes minutes without activity
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/python3 /usr/local/bin/idle_agent.py --minutes $minutes
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
UNIT
  systemctl daemon-reload
  systemctl enable idle-agent.service
  systemctl restart idle-agent.service
fi

disk=/dev/disk/by-id/google-data
udevadm settle --exit-if-exists="$disk" --timeout=60 || true
# 2: nothing was recognised on it. With any other error it may hold data.
status=0
blkid --probe "$disk" > /dev/null || status=$?
if [ "$status" = 2 ] && [ -z "$(wipefs --noheadings "$disk")" ]; then
  mkfs.ext4 -q -m 0 "$disk"
fi
mkdir -p /data
mountpoint -q /data || mount -o discard,nofail "$disk" /data
chmod 1777 /data
