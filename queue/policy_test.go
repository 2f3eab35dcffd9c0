package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

func TestPublishedPolicy(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	ctx := t.Context()
	if p, err := queue.PublishedPolicy(ctx, rdb); p != nil || err != nil {
		t.Fatalf("before: %v %v", p, err)
	}
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits:\n  a:\n    rules:\n      - {name: r, algorithm: concurrency, limit: 4}\n"))
	must(t, err)
	store := policystore.New(rdb, policystore.Config{})
	if _, _, err := store.PublishFile(ctx, "worker", p, nil); err != nil {
		t.Fatal(err)
	}
	got, err := queue.PublishedPolicy(ctx, rdb)
	if err != nil || string(limitsyaml.Format(got)) != string(limitsyaml.Format(p)) {
		t.Errorf("got %s %v, want %s", limitsyaml.Format(got), err, limitsyaml.Format(p))
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := queue.PublishedPolicy(done, rdb); err != context.Canceled { //nolint:errorlint // exactly this one
		t.Errorf("cancelled: %v", err)
	}
	rdb.HSet(ctx, "hw:limits", "version", "x")
	if _, err := queue.PublishedPolicy(ctx, rdb); !errors.As(err, new(*policystore.DamagedError)) {
		t.Errorf("damaged: %v", err)
	}
	rdb.Del(ctx, "hw:limits")
	rdb.LPush(ctx, "hw:limits", "x")
	if _, err := queue.PublishedPolicy(ctx, rdb); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("another type: %v", err)
	}
}
