"""A slow small training.

    steady_script.py RUN ITERATIONS SECONDS-EACH

Prints after each iteration how many records were submitted.
"""

import sys
import time

import torch

import tracerd

run, iterations, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
trace = tracerd.attach(model, optimizer, run=run)
for _ in range(iterations):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(trace.counters["submitted"], flush=True)
    time.sleep(seconds)
print("end", flush=True)
