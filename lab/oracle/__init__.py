"""Second opinions, written apart from what they judge: invariants over records, and the decision rules read aloud."""
