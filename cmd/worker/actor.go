package main

import (
	"cmp"

	"github.com/headway-go/headway/worker/control"
)

// atCommandLine is the actor at a command line: what Redis lets it do, it may do.
func atCommandLine(name string) control.Actor {
	return control.Actor{Name: cmp.Or(name, "cli"), Role: control.RoleAdmin, Via: "cli"}
}
