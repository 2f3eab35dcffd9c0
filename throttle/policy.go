package throttle

// Unmatched says what becomes of a scope that meets no rule at all.
type Unmatched string

// The two answers to a scope that meets no rule.
const (
	UnmatchedDeny  Unmatched = "deny"
	UnmatchedAllow Unmatched = "allow"
)

// Node is the rules of one scope and of those under it.
type Node struct {
	Rules  []Rule
	Scopes map[string]Node
}

// Policy is all rules by scope. It is immutable and safe for concurrent use.
type Policy struct{}

// NewPolicy returns the policy of a tree of limits. The error is a *PolicyError
// with every fault.
func NewPolicy(unmatched Unmatched, limits map[string]Node) (*Policy, error) { return &Policy{}, nil }

// Bound is one rule as one task meets it.
type Bound struct {
	Rule  Rule
	Scope Scope // the prefix of the task's scope at which this rule counts
}

// Match returns the rules that a scope meets, outermost level first.
func (p *Policy) Match(s Scope) ([]Bound, error) { return nil, nil }

// Check tells what can never pass: a *UnmatchedError or a *CostError.
func (p *Policy) Check(s Scope, cost int64) error { return nil }
