#!/usr/bin/env bash
# A SLURM cluster of one node, this machine, on loopback: to try `vnd sweep --slurm` on a real one.
# Needs root and Debian's packages: apt-get install slurm-wlm munge
#
#   tests/slurm/cluster.sh start FOLDER     starts munged, slurmctld and slurmd; all they write is in FOLDER
#   export SLURM_CONF=FOLDER/slurm.conf     then sinfo, sbatch, squeue and submitit find it
#   tests/slurm/cluster.sh stop FOLDER
set -euo pipefail
command=${1:-} folder=${2:-}
[[ $command =~ ^(start|stop)$ && -n $folder ]] || { echo "cluster.sh: start FOLDER, or stop FOLDER" >&2; exit 2; }
export SLURM_CONF=$folder/slurm.conf

stop() {
    local name pid
    for name in slurmd slurmctld munged; do
        pid=$(cat "$folder/$name.pid" 2>/dev/null) && kill "$pid" 2>/dev/null || continue
        for _ in {1..100}; do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        rm -f "$folder/$name.pid"
    done
}

[[ $command == stop ]] && { stop; exit; }
[[ $EUID == 0 ]] || { echo "cluster.sh: slurmd and munged must be started by root" >&2; exit 2; }
for name in munged slurmctld slurmd; do
    command -v $name >/dev/null || { echo "cluster.sh: no $name; apt-get install slurm-wlm munge" >&2; exit 2; }
done
mkdir -p "$folder"/{state,spool} && folder=$(realpath "$folder") && export SLURM_CONF=$folder/slurm.conf
chmod 755 "$folder" && host=$(hostname -s)
[[ -s $folder/munge.key ]] || head -c 128 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
cat >"$SLURM_CONF" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=10
ReturnToService=2
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
$(slurmd -C | head -1) NodeAddr=127.0.0.1 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
CONF
munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
slurmctld && slurmd
for _ in {1..100}; do
    [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]] && { echo "SLURM_CONF=$SLURM_CONF"; exit; }
    sleep 0.2
done
echo "cluster.sh: the node did not come up; see $folder/slurmd.log and slurmctld.log" >&2
stop
exit 1
