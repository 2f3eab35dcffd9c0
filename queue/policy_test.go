package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
)

func TestPublishedPolicy(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	ctx := t.Context()
	if p, err := queue.PublishedPolicy(ctx, rdb); p != nil || err != nil {
		t.Fatalf("before: %v %v", p, err)
	}
	p, err := throttle.ParsePolicy("limits.yaml", []byte("limits:\n  a:\n    rules:\n      - {name: r, algorithm: concurrency, limit: 4}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.PublishPolicy(ctx, rdb, p); err != nil {
		t.Fatal(err)
	}
	got, err := queue.PublishedPolicy(ctx, rdb)
	if err != nil || string(got.YAML()) != string(p.YAML()) {
		t.Errorf("got %s %v, want %s", got.YAML(), err, p.YAML())
	}
	if ttl := rdb.TTL(ctx, "hw:policy").Val(); ttl <= queue.PolicyTTL/2 || ttl > queue.PolicyTTL {
		t.Errorf("it lives %v", ttl)
	}

	rdb.Set(ctx, "hw:policy", "limits: [", 0)
	if _, err := queue.PublishedPolicy(ctx, rdb); !isPolicyError(err) || !strings.Contains(err.Error(), "hw:policy") {
		t.Errorf("damaged: %v", err)
	}
	rdb.Del(ctx, "hw:policy")
	rdb.LPush(ctx, "hw:policy", "x")
	if _, err := queue.PublishedPolicy(ctx, rdb); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("another type: %v", err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := queue.PublishedPolicy(done, rdb); err != context.Canceled { //nolint:errorlint // exactly this one
		t.Errorf("cancelled: %v", err)
	}
	if err := queue.PublishPolicy(done, rdb, p); err != context.Canceled { //nolint:errorlint // exactly this one
		t.Errorf("cancelled: %v", err)
	}
}

func isPolicyError(err error) bool {
	_, ok := errors.AsType[*throttle.PolicyError](err)
	return ok
}
