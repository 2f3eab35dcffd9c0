package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headway-go/headway/test/redistest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// output keeps what a program prints.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// The program serves the limits of a file, and ends when it is told to.
func TestRun(t *testing.T) {
	t.Parallel()
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	must(t, os.WriteFile(limits, []byte("limits: {api: {envoy: [edge tenant], rules: [{name: r, algorithm: fixed-window, limit: 1, per: 24h}]}}"), 0o600))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log output
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"-redis", "redis://" + redistest.NewServer(t).Addr() + "/0", "-limits", limits, "-listen", "127.0.0.1:0"}, func(string) string { return "" }, &log)
	}()
	ready := regexp.MustCompile(`msg=ready addr=(\S+)`)
	redistest.WaitFor(t, "the program to be ready", 20*time.Second, func() bool { return ready.MatchString(log.String()) })
	conn, err := grpc.NewClient(ready.FindStringSubmatch(log.String())[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { _ = conn.Close() }()
	for _, want := range []ratelimitv3.RateLimitResponse_Code{ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT} {
		resp, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "tenant", Value: "acme"}}},
		}})
		must(t, err)
		if resp.GetOverallCode() != want {
			t.Errorf("%v, want %s", resp, want)
		}
	}
	stop()
	must(t, <-ended)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for _, row := range []struct{ args, want string }{
		{"-listen 0.0.0.0:8081", "-clients does not say who may ask"},
		{"-listen :8081", "-clients does not say who may ask"},
		{"-tls-cert missing.pem", "-tls-cert and -tls-key"},
		{"-redis redis://:secret@a:b:c", "a host that is not HOST:PORT"},
		{"-redis redis-sentinel://:secret@127.0.0.1:1/?master=main", "none of the sentinels can be reached"},
		{"-redis rediss+cluster://127.0.0.1:1", "nothing listens at cluster 127.0.0.1:1"},
		{"-listen localhost:0 -redis redis://127.0.0.1:1", "nothing listens at 127.0.0.1:1"},
		{"-nothing", "headway-envoy -h"},
		{"limits.yaml", "is no flag"},
		{"-clients missing.yaml", "missing.yaml"},
		{"-limits missing.yaml", "missing.yaml"},
	} {
		if err := run(t.Context(), strings.Fields(row.args), none, io.Discard); err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", row.args, err)
		}
	}
	var help output
	must(t, run(t.Context(), []string{"-h"}, func(string) string { return "redis://:secret@127.0.0.1:1" }, &help))
	if !strings.Contains(help.String(), "-client-ca") || strings.Contains(help.String(), "secret") {
		t.Error(help.String())
	}
	page, err := os.ReadFile("../../../../docs/envoy.md")
	must(t, err)
	shown := regexp.MustCompile(`(?m)^headway-envoy (.*)$`).FindAllStringSubmatch(string(page), -1)
	for _, m := range shown {
		if err := run(t.Context(), append(strings.Fields(m[1]), "-h"), none, io.Discard); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
	if len(shown) == 0 {
		t.Error("docs/envoy.md does not show the program")
	}
}
