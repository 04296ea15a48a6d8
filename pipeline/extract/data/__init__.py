"""Where rows come from: one file for each kind of data, named by ``data:`` in a job."""
