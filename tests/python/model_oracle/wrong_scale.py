#!/usr/bin/env python3
"""The attnsmith command (ATTNSMITH_BIN), but for plans whose scale is twice what it is."""

import json
import os
import subprocess
import sys

run = subprocess.run([os.environ["ATTNSMITH_BIN"], *sys.argv[1:]], capture_output=True, text=True)
answer = json.loads(run.stdout)
for plan in answer["plans"]:
    plan["request"]["scale"] *= 2
print(json.dumps(answer))
sys.exit(run.returncode)
