"""The plan that compile, submit, schedule and rehearse make: rules, machines, prices, time, caps."""
