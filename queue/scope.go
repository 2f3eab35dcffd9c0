package queue

import "github.com/headway-go/headway/throttle/policy"

// Scope returns the scope of names that come from outside, such as a tenant's id: Scope("payments", tenant).
// Each name is one level, whatever it holds: a '/' in it is escaped. The result is empty if a name is: see
// [policy.JoinScope].
// Source: docs/scopes.md
func Scope(names ...string) string { return policy.JoinScope(names...) }
