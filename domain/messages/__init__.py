"""Wire models, one file a peer: what goes over HTTP or through Temporal, and nothing that decides."""
