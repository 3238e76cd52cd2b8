"""A whole local installation: started, watched and stopped as one thing.

| module | what it knows |
|---|---|
| `spec` | what an installation should look like |
| `client` | `Stack`: how drills, tests and the command line use one; `launch` is its start |
| `lost` | how one is seen and stopped whose files are gone |
| `supervisor` | the process that owns one; `child` is one process in its care, `control` its ear, `watcher` its own guard |
| `plan`, `environment` | from spec to command lines; `ports` finds free ones |
| `readiness` | from started to serving |
| `record`, `run_dir` | what is written down, and where |
| `processes`, `adopted`, `waiting` | the kernel's side: who carries the run id, who has ended |
"""
