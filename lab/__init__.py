"""The proof, under one roof: what stands in for a cluster, what happens to it, and who judges.

simulator   the engine stand-in; imports nothing of ours
stack       a whole local installation: started, watched, stopped
drills      acceptance scenarios: `scenarios` act, `record` sees, `judge` judges, `report` tells
bench       how fast rounds are, and what idling costs
oracle      second opinions: the invariants over what was seen, and the decision rules read aloud
"""
