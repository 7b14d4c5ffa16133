"""What the devices learn: data sets, their partition over devices, models, initial models, mini-batches."""
