#!/usr/bin/env bash
# Ends the cluster that up.sh FOLDER began: first its jobs, then its daemons, by their pid files.
set -uo pipefail
folder=$(realpath "$1")
export SLURM_CONF="$folder/slurm.conf"

# A job that puts itself back into the queue must be killed at once, and cancelled if it did.
jobs() { timeout 5 squeue --noheader --format=%A 2>/dev/null; }
for _ in $(seq 50); do
    [ -n "$(jobs)" ] || break
    scancel --full --signal=KILL $(jobs) 2>/dev/null
    scancel $(jobs) 2>/dev/null
    sleep 0.3
done

pids=$(cat "$folder"/slurmd-*.pid "$folder"/slurmctld.pid "$folder"/munged.pid 2>/dev/null)
[ -z "$pids" ] || kill $pids 2>/dev/null
for _ in $(seq 100); do
    alive=0
    for pid in $pids; do kill -0 "$pid" 2>/dev/null && alive=1; done
    [ $alive = 0 ] && exit
    sleep 0.1
done
kill -KILL $pids 2>/dev/null
exit
