package control

import "github.com/headway-go/headway/throttle/policy"

// Users lists the applications that may spend from a scope, if not all may. docs/json.md has its
// fields.
type Users struct {
	Apps      []string `json:"apps,omitempty"`
	AppsScope string   `json:"apps_scope,omitempty"` // the lowest level that lists them
}

// users returns the applications that may spend from a scope.
func (s *Service) users(scope string) Users {
	parsed, err := policy.ParseScope(scope)
	if err != nil {
		return Users{}
	}
	apps, level := s.limiter.Policy().AppsAt(parsed)
	return Users{Apps: apps, AppsScope: level.String()}
}
