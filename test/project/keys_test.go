package project

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

// "Under these limits a task of pay ments/{acme} has the keys below it", and
// every one of them has a TTL.
func TestKeysAreAsWritten(t *testing.T) {
	t.Parallel()
	page := parsePage("docs/keys.md", section(t, "docs/keys.md", "Names"))
	if len(page.blocks) != 2 {
		t.Fatalf("docs/keys.md has %d blocks under Names, want the limits and the keys", len(page.blocks))
	}
	policy, err := limitsyaml.Parse("docs/keys.md", []byte(page.blocks[0].text))
	must(t, err)
	rdb := redistest.NewServer(t).Client(t)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	ctx := t.Context()
	d, err := limiter.Decide(ctx, throttle.Request{Scope: "pay ments/{acme}", ID: "ATTEMPT"})
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	var got strings.Builder
	for _, key := range slices.Sorted(slices.Values(keys(t, rdb, "*"))) {
		fmt.Fprintf(&got, "%s %s\n", key, rdb.Type(ctx, key).Val())
		if ttl := rdb.PTTL(ctx, key).Val(); ttl <= 0 {
			t.Errorf("%s has no TTL", key)
		}
	}
	if got.String() != page.blocks[1].text {
		t.Errorf("Redis has\n%s, and docs/keys.md\n%s", got.String(), page.blocks[1].text)
	}
}
