#!/usr/bin/env bash
# A sweep over several machines: Slurm starts Ray on each of them, and the sweep runs on all.
#
#   sbatch examples/slurm_ray.sh
#
# Submit it from a checkout that every node sees, with askgauss[ray] in their environment. Submit it again after a time limit: cells
# that are done are not done twice.
#SBATCH --job-name=askgauss-sweep
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
set -euo pipefail

FOLDER=${FOLDER:-$PWD/sweep}
PORT=${PORT:-6379}
# A node's numerical libraries must not take the cores of its other workers.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Whoever reaches a cluster can run anything on it: only processes of this job know its token.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  ray start --head --node-ip-address="$address" --port="$PORT" \
  --num-cpus="$SLURM_CPUS_PER_TASK" --disable-usage-stats --block &
sleep 15
if ((${#nodes[@]} > 1)); then
  workers=$(IFS=,; echo "${nodes[*]:1}")
  srun --nodes=$((${#nodes[@]} - 1)) --ntasks-per-node=1 --nodelist="$workers" --overlap \
    ray start --address="$address:$PORT" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
  sleep 15
fi

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
  python -m paper sweep --ray "$address:$PORT" --folder "$FOLDER"
