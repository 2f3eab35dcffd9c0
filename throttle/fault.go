package throttle

// Fault is one thing wrong with a policy.
type Fault struct {
	Line, Column int
	Path         string
	Reason       string
}

// PolicyError is every fault of a policy.
type PolicyError struct {
	Name   string
	Faults []Fault
}

func (e *PolicyError) Error() string { return "" }

// CostError is a cost that can never pass. It is permanent.
type CostError struct {
	Scope    Scope
	Rule     string
	Cost     int64
	Capacity int64
}

func (e *CostError) Error() string { return "" }

// UnmatchedError is a scope that meets no rule under unmatched: deny.
type UnmatchedError struct{ Scope Scope }

func (e *UnmatchedError) Error() string { return "" }

// ScopeError is a text that is no scope.
type ScopeError struct{ Scope, Reason string }

func (e *ScopeError) Error() string { return "" }
