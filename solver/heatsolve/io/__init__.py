"""Files of results and checkpoints: HDF5, XDMF."""
