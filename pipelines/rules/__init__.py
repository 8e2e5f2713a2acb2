"""What a plan refuses or warns of: rules over the configuration, and the checks of the stages."""
