"""What a drill's script has in its hands: injections, failpoints, impostors, and waiting for what can be seen."""
