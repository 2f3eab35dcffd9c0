package main

import (
	"database/sql"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
)

// The customer whose plan is gold is served at once, and the other when it has that tier too.
func TestRun(t *testing.T) {
	t.Parallel()
	const want = "acme has the plan gold: 2 of 2 calls; bob: 1 of 2\nbob is in gold too: 2 of 2\n"
	if got := redistest.Printed(t, run); got != want {
		t.Errorf("got:\n%s", got)
	}
}

// A customer that the database does not have has no tier.
func TestTierOf(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(customers{"acme": "gold"})
	defer db.Close()
	for scope, want := range map[string]string{"api/acme": "gold", "api/new": ""} {
		name, err := policy.ParseScope(scope)
		redistest.Must(t, err)
		if got, err := tierOf(db)(t.Context(), name); got != want || err != nil {
			t.Errorf("%s has %q, %v", scope, got, err)
		}
	}
}
