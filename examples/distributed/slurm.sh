#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --cpus-per-task=64 --signal=USR1@120 --requeue
srun --mpi=pmix --kill-on-bad-exit=1 qlora train run.yaml --resume_from_checkpoint auto
