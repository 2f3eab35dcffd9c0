package envoy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/serve"
	"github.com/headway-go/headway/throttle/throttletest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const limits = `
limits:
  api:
    envoy: ["edge tenant", "edge kind=login", "edge tenant plan"]
    rules: [{name: account, algorithm: fixed-window, limit: 20, per: 1h}]
    scopes:
      "*": {rules: [{name: tenant, algorithm: fixed-window, limit: 5, per: 1m}]}
  login:
    envoy: ["edge kind=login remote_address", "edge kind remote_address"]
    scopes: {"*": {rules: [{name: address, algorithm: sliding-window, limit: 2, per: 1s}]}}
  llm:
    envoy: ["ai model"]
    scopes: {"*": {rules: [{name: tokens, algorithm: fixed-window, limit: 1000, per: 24h, unit: tokens}, {name: requests, algorithm: fixed-window, limit: 1000, per: 24h}]}}
  open:
    envoy: [edge open]
    rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1h, on_redis_error: open}]
  none:
    envoy: [edge none]
`

// edge is a gateway: a client of go-control-plane over a connection.
type edge struct {
	t      *testing.T
	redis  *throttletest.Redis
	client ratelimitv3.RateLimitServiceClient
	ctx    context.Context //nolint:containedctx // with the token of a test
}

func newEdge(t *testing.T, clients *serve.Clients) *edge {
	t.Helper()
	l, redis := throttletest.NewWithRedis(t, throttletest.Policy(t, limits), throttle.Config{StartTolerance: -1})
	service, err := New(Config{Limiter: l, Clients: clients})
	must(t, err)
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &edge{t: t, redis: redis, client: ratelimitv3.NewRateLimitServiceClient(conn), ctx: t.Context()}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// descriptor reads "tenant=acme plan=pro +3", with hits of its own behind a + or -.
func descriptor(text string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for word := range strings.FieldsSeq(text) {
		if hits, is := strings.CutPrefix(strings.TrimPrefix(word, "-"), "+"); is || word[0] == '-' {
			var n uint64
			_, _ = fmt.Sscan(hits, &n)
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), word[0] == '-'
			continue
		}
		key, value, _ := strings.Cut(word, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

func (e *edge) ask(domain string, hits uint32, descriptors ...string) (*ratelimitv3.RateLimitResponse, error) {
	req := &ratelimitv3.RateLimitRequest{Domain: domain, HitsAddend: hits}
	for _, text := range descriptors {
		req.Descriptors = append(req.Descriptors, descriptor(text))
	}
	return e.client.ShouldRateLimit(e.ctx, req)
}

// wants asks, and compares the overall code and of each descriptor the rule and what it has left, as "api:account 19".
func (e *edge) wants(domain string, hits uint32, descriptors []string, code ratelimitv3.RateLimitResponse_Code, statuses ...string) *ratelimitv3.RateLimitResponse {
	e.t.Helper()
	resp, err := e.ask(domain, hits, descriptors...)
	must(e.t, err)
	var got []string
	for _, s := range resp.GetStatuses() {
		text := "none"
		if s.GetCurrentLimit() != nil {
			text = fmt.Sprint(s.GetCurrentLimit().GetName(), " ", s.GetLimitRemaining())
		}
		if s.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
			text += " over"
		}
		got = append(got, text)
	}
	if resp.GetOverallCode() != code || strings.Join(got, "; ") != strings.Join(statuses, "; ") {
		e.t.Errorf("%v: %s, %q; want %s, %q", descriptors, resp.GetOverallCode(), got, code, statuses)
	}
	return resp
}

const ok, over = ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT

func of(descriptors ...string) []string { return descriptors }

// Descriptors become scopes by the table in the limits.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	e.wants("edge", 0, of("tenant=acme"), ok, "api/*:tenant 4")
	e.wants("edge", 0, of("tenant=acme plan=pro"), ok, "api/*:tenant 3")
	e.wants("edge", 0, of("plan=pro tenant=acme"), ok, "none") // keys have an order
	e.wants("edge", 0, of("tenant=acme other=x"), ok, "none")
	e.wants("other", 0, of("tenant=acme"), ok, "none")
	e.wants("edge", 0, of("kind=login"), ok, "api:account 17")
	e.wants("edge", 0, of("kind=login remote_address=10.0.0.1"), ok, "login/*:address 1") // the one with a value goes first
	e.wants("edge", 0, of("kind=x remote_address=10.0.0.1"), ok, "login/*:address 1")     // of login/x
	e.wants("edge", 0, of("none="), over, "none over")
	for _, value := range []string{"a/b", "a", "*", "..", "a%2Fb", "", "%"} { // none spends from another's
		e.wants("edge", 0, of("tenant="+value), ok, "api/*:tenant 4")
	}
}

// hits_addend: 0 of a request is 1, 0 of a descriptor only looks, and a descriptor's own counts alone.
func TestHits(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	e.wants("ai", 100, of("model=m"), ok, "llm/*:tokens 900")
	e.wants("ai", 100, of("model=m +0"), ok, "llm/*:tokens 900")
	e.wants("ai", 100, of("model=m +300"), ok, "llm/*:tokens 600")
	e.wants("ai", 0, of("model=m -50"), ok, "llm/*:tokens 650")
	e.wants("ai", 0, of("model=m -300"), ok, "llm/*:tokens 950")
	e.wants("ai", 0, of("model=m -300"), ok, "llm/*:tokens 1000") // no more than was granted
	e.wants("ai", 0, of("model=m +1001"), over, "none over")
	e.wants("ai", 0, of("model=m +1000"), ok, "llm/*:tokens 0")
	resp := e.wants("ai", 0, of("model=m"), over, "llm/*:tokens 0 over")
	headers := map[string]string{}
	for _, h := range resp.GetResponseHeadersToAdd() {
		headers[h.GetKey()] = h.GetValue()
	}
	limit := resp.GetStatuses()[0]
	if headers["retry-after"] == "" || !strings.Contains(headers["ratelimit"], "r=0") || limit.GetCurrentLimit().GetRequestsPerUnit() != 1000 ||
		limit.GetCurrentLimit().GetUnit() != ratelimitv3.RateLimitResponse_RateLimit_DAY || limit.GetDurationUntilReset().AsDuration() <= 0 {
		t.Errorf("%v %v", headers, resp)
	}
}

// "Either all that it asks for are granted, or none stays charged."
func TestAllOrNone(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	e.wants("edge", 2, of("tenant=a", "kind=login remote_address=x"), ok, "api/*:tenant 3", "login/*:address 0")
	for range 3 {
		resp, err := e.ask("edge", 0, "tenant=a", "kind=login remote_address=x")
		must(t, err)
		if resp.GetOverallCode() != over || resp.GetStatuses()[0].GetCode() != ok {
			t.Errorf("%v", resp)
		}
	}
	e.wants("edge", 0, of("tenant=a +0"), ok, "api/*:tenant 3")
}

func TestRefused(t *testing.T) {
	t.Parallel()
	e := newEdge(t, nil)
	for name, row := range map[string]struct {
		domain      string
		descriptors []string
		code        codes.Code
	}{
		"no domain":      {"", of("tenant=a"), codes.InvalidArgument},
		"no descriptors": {"edge", nil, codes.InvalidArgument},
		"too many":       {"edge", make([]string, 65), codes.InvalidArgument},
		"too many hits":  {"edge", of("tenant=a +18446744073709551615"), codes.InvalidArgument},
	} {
		if _, err := e.ask(row.domain, 0, row.descriptors...); status.Code(err) != row.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	e.redis.Close()
	e.wants("edge", 0, of("open=x"), ok, "open:r 5")
	if _, err := e.ask("edge", 0, "tenant=a"); status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("%v", err)
	}
}

// A client uses its scopes, by a token in the metadata.
func TestClients(t *testing.T) {
	t.Parallel()
	sum, other := sha256.Sum256([]byte("secret")), sha256.Sum256([]byte("other"))
	path := filepath.Join(t.TempDir(), "clients.yaml")
	must(t, os.WriteFile(path, []byte("clients: {gateway: {sha256: "+hex.EncodeToString(sum[:])+", scopes: [api/a, login]}, other: {sha256: "+hex.EncodeToString(other[:])+", scopes: [api]}}"), 0o600))
	clients, err := serve.LoadClients(path)
	must(t, err)
	e := newEdge(t, clients)
	plain := e.ctx
	for _, row := range []struct {
		token, descriptor string
		code              codes.Code
	}{
		{"", "tenant=a", codes.Unauthenticated},
		{"wrong", "tenant=a", codes.Unauthenticated},
		{"secret", "tenant=a", codes.OK},
		{"secret", "tenant=b", codes.PermissionDenied},
		{"secret", "unlisted=b", codes.OK},
	} {
		if e.ctx = plain; row.token != "" {
			e.ctx = metadata.AppendToOutgoingContext(plain, "authorization", "Bearer "+row.token)
		}
		if _, err := e.ask("edge", 0, row.descriptor); status.Code(err) != row.code {
			t.Errorf("%v: %v", row, err)
		}
	}
	for _, row := range []struct{ token, descriptor, left string }{
		{"other", "tenant=a -1", "4"}, // none of what the gateway took comes back
		{"secret", "tenant=a -1", "5"},
	} {
		e.ctx = metadata.AppendToOutgoingContext(plain, "authorization", "Bearer "+row.token)
		e.wants("edge", 0, of(row.descriptor), ok, "api/*:tenant "+row.left)
	}
}
