package main

import (
	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policy"
)

// usedBy is who may spend from a scope, where not all applications may; docs/json.md has its
// fields.
type usedBy struct {
	Apps      []string `json:"apps,omitempty"`
	AppsScope string   `json:"apps_scope,omitempty"`
}

// usedBy tells who may spend from a scope, and the lowest level that says so.
func (i *inspection) usedBy(scope string) (by usedBy) {
	s, err := policy.ParseScope(scope)
	if err != nil {
		return by
	}
	apps, level := i.limiter.Policy().AppsAt(s)
	return usedBy{Apps: apps, AppsScope: level.String()}
}

// lines tells it to people.
func (u usedBy) lines() [][2]string {
	if u.AppsScope == "" {
		return nil
	}
	who := "none: no application may spend from " + cli.Quote(u.AppsScope)
	if len(u.Apps) > 0 {
		who = quoted(u.Apps) + " alone may spend from " + cli.Quote(u.AppsScope) + "; tasks wait for a worker of one of them"
	}
	return [][2]string{{"apps", who}}
}
