"""The DP supervisor: its rules by table and at random, its command line, and the process with simulated servers."""
