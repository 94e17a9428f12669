#!/bin/sh
# A backup of the database each night, verified, with the newest 14 kept: users-backup.sh, to be run once, as root.
# The key of authenticator apps, auth.secretKey or users.key beside the database, is not in it: keep a copy of it, but not in
# the same place.
# It writes a service and a timer for systemd, and starts the timer. Made by `usersctl snippet backup`.
set -eu

install -d -m 0700 -o ${user} /var/backups/users

cat >/etc/systemd/system/users-backup.service <<'END'
[Unit]
Description=Backs up the user accounts

[Service]
Type=oneshot
ExecStart=${usersctl}${options} --quiet db backup --keep 14 /var/backups/users
User=${user}
UMask=0077
${folders}
ReadWritePaths=/var/backups/users

CapabilityBoundingSet=
NoNewPrivileges=yes
ProtectSystem=strict
ProcSubset=pid
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateDevices=yes
PrivateMounts=yes
PrivateNetwork=${private_network}
PrivateTmp=yes
PrivateUsers=yes
KeyringMode=private
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=${address_families}
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
END

cat >/etc/systemd/system/users-backup.timer <<'END'
[Unit]
Description=Backs up the user accounts, each night

[Timer]
OnCalendar=*-*-* 01:00:00
RandomizedDelaySec=10min
# Runs at the next start if the machine was off.
Persistent=true

[Install]
WantedBy=timers.target
END

systemctl daemon-reload
systemctl enable --now users-backup.timer
