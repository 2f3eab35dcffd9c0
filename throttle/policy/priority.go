package policy

// MaxPriority is the largest priority of a task; -MaxPriority is the smallest.
const MaxPriority = 1_000_000
