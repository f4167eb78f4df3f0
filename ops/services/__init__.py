"""`forebay install`: proxy and worker as two services of launchd or systemd, written, loaded and removed."""
