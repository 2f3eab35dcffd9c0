package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/bench/figures"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/serve"
)

// BenchmarkServe counts decisions over HTTP, on 64 connections, beside those of 64 callers in the server's own process. Clients, server
// and Redis share the machine. Other rows ask at a pace: 30,000 times a second is what a server of two processors should answer within 2 ms.
func BenchmarkServe(b *testing.B) {
	measureDecisions(b, "decisions over HTTP, 64 connections, one rule", callers, func(rdb *redis.Client) []decider {
		return []decider{byLimiter(b, rdb, "Headway in process", "p/", false), overHTTP(b, rdb), netHTTP(b)}
	})
	for _, thousands := range []int{5, 30} {
		paced := fmt.Sprintf("decisions over HTTP, 64 connections, one rule, %d,000/s asked for", thousands)
		b.Run(paced, func(b *testing.B) { measurePaced(b, paced, 1000*thousands) })
	}
}

// measurePaced asks so many times a second.
func measurePaced(b *testing.B, measure string, rate int) {
	b.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.NewServer(b).Addr()})
	defer func() { _ = rdb.Close() }()
	d := overHTTP(b, rdb)
	var took []time.Duration
	var spent time.Duration
	for b.Loop() {
		for range rounds() {
			began := time.Now()
			took = append(took, atPace(b, callers, rate, d.decide)...)
			spent += time.Since(began)
		}
	}
	row := figures.NewRow(measure, d.name)
	row.Rate = float64(len(took)) / spent.Seconds()
	row.P50, row.P99 = figures.Quantile(took, 0.5), figures.Quantile(took, 0.99)
	b.ReportMetric(float64(row.P99.Microseconds())/1000, "p99-ms")
	table.add(row)
}

// atPace has callers decide so many times a second together, and returns what each call took. A caller that is behind asks at once.
func atPace(b *testing.B, callers, rate int, decide func(context.Context, int) error) []time.Duration {
	b.Helper()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	began, each := time.Now(), time.Duration(callers)*time.Second/time.Duration(rate)
	for caller := range callers {
		wg.Go(func() {
			var took []time.Duration
			for at := began.Add(each * time.Duration(caller) / time.Duration(callers)); at.Sub(began) < turn; at = at.Add(each) {
				<-time.After(time.Until(at))
				sent := time.Now()
				if err := decide(b.Context(), len(took)%manyKeys); err != nil {
					b.Error(err)
					return
				}
				took = append(took, time.Since(sent))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
		})
	}
	wg.Wait()
	return all
}

// overHTTP asks a server that decides.
func overHTTP(b *testing.B, rdb *redis.Client) decider {
	b.Helper()
	unused := make([]byte, 32<<20) // as worker serve has them
	b.Cleanup(func() { runtime.KeepAlive(unused) })
	handler, err := serve.New(serve.Config{Limiter: unreached(b, rdb, throttle.Config{})})
	must(b, err)
	return byHTTP(b, "Headway over HTTP", handler)
}

// netHTTP asks a server that reads a request and answers as ours does, always the same: it is what Go's net/http leaves room for.
func netHTTP(b *testing.B) decider {
	b.Helper()
	answer := []byte(`{"allowed":true,"rule":"plan","rule_scope":"p/1/b","unit":"requests","limit":1000000,"remaining":999999,"reset_ms":86400000}` + "\n")
	return byHTTP(b, "net/http alone, a constant answer", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
}

// byHTTP asks a server by connections of its own, with little work for the client: what is measured is the server.
func byHTTP(b *testing.B, name string, handler http.Handler) decider {
	b.Helper()
	server := httptest.NewServer(handler)
	b.Cleanup(server.Close)
	requests := make([][]byte, manyKeys)
	for i := range requests {
		body := `{"scope":"p/` + strconv.Itoa(i) + `/b"}`
		requests[i] = fmt.Appendf(nil, "POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	idle := make(chan *bufio.ReadWriter, callers)
	for range callers {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		must(b, err)
		b.Cleanup(func() { _ = conn.Close() })
		idle <- bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	}
	return decider{name, func(_ context.Context, i int) error {
		conn := <-idle
		defer func() { idle <- conn }()
		_, _ = conn.Write(requests[i]) // Flush returns its error
		if err := conn.Flush(); err != nil {
			return err
		}
		return readOK(conn.Reader)
	}}
}

// readOK reads an answer, which must be 200, in as little time as possible.
func readOK(r *bufio.Reader) error {
	const length = "Content-Length: "
	body := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case first && string(line) != "HTTP/1.1 200 OK\r\n":
			return fmt.Errorf("%s: %q", http.MethodPost, line)
		case len(line) > len(length) && string(line[:len(length)]) == length:
			if body, err = strconv.Atoi(string(line[len(length) : len(line)-2])); err != nil {
				return err
			}
		case len(line) == 2:
			_, err := io.CopyN(io.Discard, r, int64(body))
			return err
		}
	}
}
