"""Study `arkgpu`: objectives kept and goodput of services and trainings under each sharing mode."""
