package envoy

import (
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
)

// BenchmarkEnvoy counts decisions over gRPC of 64 callers on a connection each, and as many on one connection, which is how an Envoy asks. The
// callers, the server and Redis share the machine. Descriptors that no list has are answered without deciding: what grpc-go leaves room for.
func BenchmarkEnvoy(b *testing.B) {
	const callers = 64
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
	defer func() { _ = rdb.Close() }()
	limiter, err := throttle.New(rdb, throttletest.Policy(b, "limits: {api: {envoy: [edge tenant], scopes: {'*': {rules: [{name: plan, algorithm: fixed-window, limit: 1000000, per: 24h}]}}}}"), throttle.Config{})
	redistest.Must(b, err)
	service, err := New(Config{Limiter: limiter})
	redistest.Must(b, err)
	for _, conns := range []int{callers, 1} {
		b.Run("decided/connections="+strconv.Itoa(conns), func(b *testing.B) { askAll(b, service, callers, conns, "tenant") })
		b.Run("not listed/connections="+strconv.Itoa(conns), func(b *testing.B) { askAll(b, service, callers, conns, "other") })
	}
}

// askAll has callers ask as fast as they are answered.
func askAll(b *testing.B, service *Service, callers, conns int, key string) {
	b.Helper()
	server := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(server, service)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	redistest.Must(b, err)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	clients := make([]ratelimitv3.RateLimitServiceClient, conns)
	for i := range clients {
		conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		redistest.Must(b, err)
		defer func() { _ = conn.Close() }()
		clients[i] = ratelimitv3.NewRateLimitServiceClient(conn)
	}
	took := make([][]time.Duration, callers)
	var wg sync.WaitGroup
	b.ResetTimer()
	for caller := range callers {
		wg.Go(func() {
			for i := caller; i < b.N; i += callers {
				sent := time.Now()
				resp, err := clients[caller%conns].ShouldRateLimit(b.Context(), &ratelimitv3.RateLimitRequest{
					Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{descriptor(key + "=" + strconv.Itoa(i%1000))},
				})
				if err != nil || resp.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
					b.Errorf("%v, %v", resp, err)
					return
				}
				took[caller] = append(took[caller], time.Since(sent))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
}
