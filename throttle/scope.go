package throttle

// Scope is the path that a task spends from, outermost name first:
// payments/acme/refunds is provider, tenant, endpoint.
//
// It is a value: two Scopes are == exactly when they are the same path, so one
// can be a map key. The zero Scope has no names and meets no rule.
type Scope struct{ text string }

// ParseScope reads a path of names divided by '/'. The error is a *ScopeError.
func ParseScope(s string) (Scope, error) { return Scope{text: s}, nil }

// String returns the path as it was parsed.
func (s Scope) String() string { return s.text }

// Names returns the names of the path, outermost first.
func (s Scope) Names() []string { return nil }

// Provider returns the outermost name. All keys of one provider share a slot.
func (s Scope) Provider() string { return "" }

// Len returns how many names the path has.
func (s Scope) Len() int { return 0 }

// Prefix returns the path of the first n names, and s itself when n >= Len.
func (s Scope) Prefix(n int) Scope { return s }
