// Package envoy answers Envoy's rate limit service, envoy.service.ratelimit.v3, by a throttle.Limiter: Envoy, and the gateways that are made
// of it, keep the same limits as workers do, unchanged.
//
//	service, err := envoy.New(envoy.Config{Limiter: limiter})
//	ratelimitv3.RegisterRateLimitServiceServer(grpcServer, service)
//
// It is a module of its own, so that grpc is no dependency of who does not serve it. The program headway-envoy below it serves limits.yaml.
// docs/envoy.md says how descriptors become scopes.
package envoy

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/serve"
)

// Config configures New.
type Config struct {
	// Limiter decides. Required.
	Limiter *throttle.Limiter
	// Clients are the programs that may ask, as of package serve: by a token in the metadata authorization, or by certificate.
	// Without them any program may: only for an address that other machines do not reach. Defaults to none.
	Clients *serve.Clients
}

// Service is the rate limit service. It is safe for concurrent use.
type Service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	cfg    Config
	table  atomic.Pointer[table]
	recent recent
}

// New returns a Service. It does no I/O.
func New(cfg Config) (*Service, error) {
	if cfg.Limiter == nil {
		return nil, errors.New("envoy: New needs a Limiter")
	}
	return &Service{cfg: cfg, recent: recent{scopes: map[string][]given{}}}, nil
}

// mostDescriptors bounds what one request costs.
const mostDescriptors = 64

// ShouldRateLimit decides on each descriptor, as the policy's Envoy descriptors have it. Either all that it asks for are granted, or
// none stays charged. A descriptor that the policy does not list is OK, without a limit; one whose scope the policy denies, or that costs more than
// a rule ever admits, is OVER_LIMIT. While Redis does not answer, the rules' failure policies decide; under a closed rule the error is
// Unavailable, and Envoy's failure_mode_deny decides.
func (s *Service) ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	client, err := s.client(ctx)
	if err != nil {
		return nil, err
	}
	asks, err := s.read(req, client)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	for i := range asks[1:] {
		wg.Go(func() { s.decide(ctx, &asks[i+1]) })
	}
	s.decide(ctx, &asks[0])
	wg.Wait()
	return s.answer(ctx, asks)
}

// client returns who asks, nil without Config.Clients.
func (s *Service) client(ctx context.Context) (*serve.Client, error) {
	if s.cfg.Clients == nil {
		return nil, nil
	}
	given := strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ",")
	info := credentials.TLSInfo{}
	if p, is := peer.FromContext(ctx); is {
		info, _ = p.AuthInfo.(credentials.TLSInfo)
	}
	if client := s.cfg.Clients.Of(given, &info.State); client != nil {
		return client, nil
	}
	return nil, status.Error(codes.Unauthenticated, "no client has this token or certificate; send the metadata authorization: Bearer TOKEN, or a certificate")
}

// ask is one descriptor, and what became of it.
type ask struct {
	scope    string // "" for a descriptor that the policy does not list
	owner    string // the client and the scope: none gives back what another one took
	hits     uint64
	negative bool

	decision throttle.Decision
	err      error
}

// read reads a request, and checks that its client may use the scopes.
func (s *Service) read(req *ratelimitv3.RateLimitRequest, client *serve.Client) ([]ask, error) {
	switch n := len(req.GetDescriptors()); {
	case req.GetDomain() == "":
		return nil, status.Error(codes.InvalidArgument, "the domain is empty; set domain in Envoy's filter")
	case n == 0 || n > mostDescriptors:
		return nil, status.Errorf(codes.InvalidArgument, "there are %d descriptors; send 1 to %d", n, mostDescriptors)
	}
	table := s.current()
	asks := make([]ask, len(req.GetDescriptors()))
	for i, d := range req.GetDescriptors() {
		a := &asks[i]
		a.scope, a.hits, a.negative = table.scopeOf(req.GetDomain(), d.GetEntries()), max(1, uint64(req.GetHitsAddend())), d.GetIsNegativeHits()
		if a.owner = a.scope; client != nil {
			a.owner = client.Name + "/" + a.scope
		}
		if d.GetHitsAddend() != nil {
			a.hits = d.GetHitsAddend().GetValue()
		}
		if a.hits > math.MaxInt64 {
			return nil, status.Errorf(codes.InvalidArgument, "hits_addend is %d; the most is %d", a.hits, math.MaxInt64)
		}
		if a.scope != "" && client != nil && !client.May(a.scope) {
			return nil, status.Errorf(codes.PermissionDenied, "the client %s may not use the scope %q; it may use %s", client.Name, a.scope, strings.Join(client.Scopes, ", "))
		}
	}
	return asks, nil
}

func (s *Service) decide(ctx context.Context, a *ask) {
	if a.decision.Allowed = a.scope == ""; a.decision.Allowed {
		return
	}
	req := throttle.Request{Scope: a.scope, Cost: int64(a.hits)} //nolint:gosec // see read
	if a.hits == 0 || a.negative {
		req = throttle.Request{Scope: a.scope, Costs: policy.Costs{policy.Requests: 0}}
	}
	if a.negative {
		s.recent.giveBack(ctx, s.cfg.Limiter, a.owner, int64(a.hits)) //nolint:gosec // as above
	}
	a.decision, a.err = s.cfg.Limiter.Decide(ctx, req)
	if errors.As(a.err, new(*policy.UnmatchedError)) || errors.As(a.err, new(*policy.CostError)) {
		a.decision, a.err = throttle.Decision{Binding: -1, RetryAfter: throttle.Never}, nil // it is denied for good
	}
}

// answer puts decisions together, and gives back what was granted if another one was not.
func (s *Service) answer(ctx context.Context, asks []ask) (*ratelimitv3.RateLimitResponse, error) {
	out := &ratelimitv3.RateLimitResponse{OverallCode: ratelimitv3.RateLimitResponse_OK}
	shown, err := -1, error(nil)
	for i := range asks {
		a := &asks[i]
		err = errors.Join(err, a.err)
		if !a.decision.Allowed {
			out.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT
		}
		if a.scope != "" && (shown < 0 || closer(a.decision, asks[shown].decision)) {
			shown = i
		}
		out.Statuses = append(out.Statuses, statusOf(a.decision))
	}
	if err != nil || out.OverallCode != ratelimitv3.RateLimitResponse_OK {
		s.undo(ctx, asks)
	} else {
		for i := range asks {
			s.recent.add(asks[i].owner, asks[i].decision, asks[i].hits)
		}
	}
	if err != nil {
		return nil, grpcError(err)
	}
	if shown >= 0 {
		for name, values := range asks[shown].decision.Header() {
			out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, &corev3.HeaderValue{Key: strings.ToLower(name), Value: strings.Join(values, ", ")})
		}
		slices.SortFunc(out.ResponseHeadersToAdd, func(a, b *corev3.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	}
	return out, nil
}

// closer reports whether a decision is closer to its limit than another one.
func closer(a, b throttle.Decision) bool {
	if a.Allowed != b.Allowed {
		return b.Allowed
	}
	if !a.Allowed {
		return a.RetryAfter > b.RetryAfter
	}
	ofA, isA := a.BindingRule()
	ofB, isB := b.BindingRule()
	return isA && (!isB || ofA.Remaining < ofB.Remaining)
}

// undo gives back what was granted. If that fails, the units come back by the clock.
func (s *Service) undo(ctx context.Context, asks []ask) {
	for i := range asks {
		if g := asks[i].decision.Grant; asks[i].err == nil && !g.Zero() {
			_ = s.cfg.Limiter.Refund(ctx, g)
		}
	}
}

func grpcError(err error) error {
	switch {
	case errors.Is(err, context.Canceled):
		return status.FromContextError(context.Canceled).Err()
	case errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(context.DeadlineExceeded).Err()
	case errors.Is(err, throttle.ErrUnavailable):
		return status.Error(codes.Unavailable, "Redis does not answer, and a rule of the scope is closed then")
	case errors.As(err, new(*policy.AppError)):
		return status.Error(codes.PermissionDenied, strings.TrimPrefix(err.Error(), "throttle: "))
	}
	return status.Error(codes.InvalidArgument, strings.TrimPrefix(err.Error(), "throttle: "))
}

func statusOf(d throttle.Decision) *ratelimitv3.RateLimitResponse_DescriptorStatus {
	out := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: ratelimitv3.RateLimitResponse_OK}
	if !d.Allowed {
		out.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	r, is := d.BindingRule()
	if !is {
		return out
	}
	out.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{Name: r.Pattern + ":" + r.Rule, RequestsPerUnit: small(r.Limit), Unit: units[r.Window]}
	out.LimitRemaining = small(r.Remaining)
	if r.ResetAfter != throttle.Never {
		out.DurationUntilReset = durationpb.New(r.ResetAfter)
	}
	return out
}

// small is a number as far as Envoy counts.
func small(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) } //nolint:gosec // it is in its range

const day = 24 * time.Hour

// units are the windows that Envoy has names for. Others have none.
var units = map[time.Duration]ratelimitv3.RateLimitResponse_RateLimit_Unit{
	time.Second: ratelimitv3.RateLimitResponse_RateLimit_SECOND, time.Minute: ratelimitv3.RateLimitResponse_RateLimit_MINUTE,
	time.Hour: ratelimitv3.RateLimitResponse_RateLimit_HOUR, day: ratelimitv3.RateLimitResponse_RateLimit_DAY,
}

// table is the policy's descriptors by domain and keys.
type table struct {
	of   *policy.Policy
	rows map[string][]policy.Descriptor
}

// current returns the table of the policy in force.
func (s *Service) current() *table {
	of := s.cfg.Limiter.Policy()
	if t := s.table.Load(); t != nil && t.of == of {
		return t
	}
	t := &table{of: of, rows: map[string][]policy.Descriptor{}}
	for d := range of.Descriptors() {
		at := strconv.Quote(d.Domain)
		for _, key := range d.Keys {
			at += strconv.Quote(key.Key)
		}
		t.rows[at] = append(t.rows[at], d)
	}
	for _, rows := range t.rows { // the one with the most values goes first, and of equals always the same
		slices.SortFunc(rows, func(a, b policy.Descriptor) int {
			if n := fixed(b) - fixed(a); n != 0 {
				return n
			}
			return strings.Compare(a.Scope.String(), b.Scope.String())
		})
	}
	s.table.Store(t)
	return t
}

func fixed(d policy.Descriptor) (n int) {
	for _, key := range d.Keys {
		if key.Fixed {
			n++
		}
	}
	return n
}

// noValue is the name that an entry without a value gives its scope. No value is written like this.
const noValue = "%"

// scopeOf returns the scope of a descriptor, "" if the policy does not list it.
func (t *table) scopeOf(domain string, entries []*commonv3.RateLimitDescriptor_Entry) string {
	at := strconv.Quote(domain)
	for _, e := range entries {
		at += strconv.Quote(e.GetKey())
	}
	for _, d := range t.rows[at] {
		scope, fits := d.Scope.String(), true
		for i, key := range d.Keys {
			value := entries[i].GetValue()
			switch {
			case key.Fixed:
				fits = fits && key.Value == value
			case value == "":
				scope += "/" + noValue
			default:
				scope += "/" + policy.JoinScope(value)
			}
		}
		if fits {
			return scope
		}
	}
	return ""
}
