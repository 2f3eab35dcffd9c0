package riverlimit_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// docs/tiers.md, "Read tiers from your database", with PostgreSQL: a changed plan counts when TierTTL has passed, and without the table
// the last known one does.
func TestTiersFromPostgres(t *testing.T) {
	t.Parallel()
	db := stdlib.OpenDBFromPool(pool(t))
	defer db.Close()
	exec := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement)
		redistest.Must(t, err)
	}
	exec("CREATE TABLE customers (id text PRIMARY KEY, plan text NOT NULL)")
	exec("INSERT INTO customers VALUES ('acme', 'gold'), ('bob', '')")
	failed := make(chan error, 100)
	tierOf := func(ctx context.Context, name policy.Scope) (tier string, err error) {
		err = db.QueryRowContext(ctx, "SELECT plan FROM customers WHERE id = $1", name.Names()[1]).Scan(&tier)
		if errors.Is(err, sql.ErrNoRows) {
			return "", nil // no tier
		}
		if err != nil {
			failed <- err
		}
		return tier, err
	}
	perSecond := func(limit int64) policy.ScopeConfig {
		return policy.ScopeConfig{Rules: []policy.Rule{{Name: "customer", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}}}
	}
	limits, err := policy.New("", map[string]policy.ScopeConfig{"api": {
		Tiers: map[string]policy.ScopeConfig{"gold": perSecond(200)}, Scopes: map[string]policy.ScopeConfig{"*": perSecond(2)},
	}})
	redistest.Must(t, err)
	l, err := throttle.New(redistest.Client(t), limits, throttle.Config{TierOf: tierOf, TierTTL: time.Second, Prefix: redistest.Prefix(t)})
	redistest.Must(t, err)
	limit := func(scope string) int64 {
		t.Helper()
		d, err := l.Peek(t.Context(), throttle.Request{Scope: scope})
		redistest.Must(t, err)
		return d.Rules[0].Limit
	}
	if acme, bob, other := limit("api/acme"), limit("api/bob"), limit("api/new"); acme != 200 || bob != 2 || other != 2 {
		t.Errorf("limits %d, %d and %d", acme, bob, other)
	}
	exec("UPDATE customers SET plan = 'gold' WHERE id = 'bob'")
	redistest.WaitFor(t, "bob's new plan", bound, func() bool { return limit("api/bob") == 200 })
	exec("DROP TABLE customers")
	redistest.WaitFor(t, "a question that fails", bound, func() bool {
		if acme, bob := limit("api/acme"), limit("api/bob"); acme != 200 || bob != 200 {
			t.Fatalf("limits %d and %d without the table", acme, bob)
		}
		return len(failed) > 0
	})
}
