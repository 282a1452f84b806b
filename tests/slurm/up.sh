#!/usr/bin/env bash
# A Slurm cluster of two make-believe nodes on this machine, for tests: up.sh FOLDER
#
# Runs as root, without systemd, cgroups or a database. Everything lives in FOLDER; clients find
# the cluster by SLURM_CONF=FOLDER/slurm.conf, and down.sh FOLDER ends it.
set -euo pipefail
folder=$(realpath "$1")
host=$(hostname -s)
nodes=(node1 node2)
mkdir -p "$folder"/{munge,state,log,gpus} "${nodes[@]/#/$folder/spool-}"
chmod 755 "$folder"

# Ports that are free now; a collision in the moment until they are taken fails loudly.
read -r ctld_port port1 port2 < <(python3 - <<'PY'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in sockets))
PY
)

head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 400 "$folder/munge/key"
for gpu in 0 1; do ln -s /dev/null "$folder/gpus/gpu$gpu"; done

# - FirstJobId: MPICH names shared memory by job and step, and other clusters here have jobs, too.
# - config_overrides: the nodes have the processors written here, not those of the machine.
# - cred_expire is also the time for which a requeued job waits: two minutes by default.
# - JobRequeue, KillOnBadExit: the least helpful choices of a site, with which scripts must cope.
cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$ctld_port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
FirstJobId=$((RANDOM * 1000 + 1))
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
SlurmdParameters=config_overrides
KillWait=5
JobRequeue=0
KillOnBadExit=1
GresTypes=gpu
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$port1 CPUs=4 Gres=gpu:2
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$port2 CPUs=4 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
# Files that stand for devices: Slurm hands them out, no program opens them.
echo "Name=gpu File=$folder/gpus/gpu[0-1]" >"$folder/gres.conf"

export SLURM_CONF="$folder/slurm.conf"
# --force: the parents of a temporary folder may be writable by all.
munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
slurmctld
for node in "${nodes[@]}"; do slurmd -N "$node"; done

for _ in $(seq 200); do
    [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | grep -c idle)" = 2 ] && exit
    sleep 0.1
done
echo "the nodes do not come up:" >&2
tail -n 5 "$folder"/log/*.log >&2
exit 1
