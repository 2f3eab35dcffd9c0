// serve asks a server of decisions as a program in any language does, with JSON over HTTP and nothing of Headway's: it waits for a turn,
// reserves tokens and settles them, and holds a lease.
//
//	go run ./examples/serve                                          # with a server and a Redis of its own
//	worker serve -limits examples/serve/limits.yaml & go run ./examples/serve -url http://localhost:9092
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/serve"
)

func main() {
	url := flag.String("url", "", "the server, such as http://localhost:9092; by default one that this program starts")
	limits := flag.String("limits", "examples/serve/limits.yaml", "the limits of that one")
	flag.Parse()
	if err := run(os.Stdout, *url, *limits); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer, url, limits string) error {
	if url == "" {
		server, closeServer, err := start(limits)
		if err != nil {
			return err
		}
		defer closeServer()
		url = server
	}
	for i := range 5 { // three at once, and then two a second
		a, err := post(url, "decide", map[string]any{"scope": "payments/acme", "wait": "5s", "id": fmt.Sprint("charge-", i)})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "charge", i, "may start:", a["allowed"])
	}

	a, err := post(url, "reserve", map[string]any{"scope": "llm", "cost": map[string]int{"tokens": 4000}})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "reserved 4000 tokens,", a["remaining"], "remain")
	// … the call, whose answer says what it took
	if _, err = post(url, "settle", map[string]any{"scope": "llm", "id": a["id"], "cost": map[string]int{"tokens": 1200}}); err != nil {
		return err
	}
	if a, err = post(url, "decide", map[string]any{"scope": "llm", "cost": map[string]int{"tokens": 1}}); err != nil {
		return err
	}
	fmt.Fprintln(out, "settled at 1200, and one more:", a["remaining"], "remain")

	for _, step := range []struct{ call, id string }{{"lease", "one"}, {"lease", "two"}, {"renew", "one"}, {"release", "one"}, {"lease", "two"}} {
		a, err := post(url, step.call, map[string]any{"scope": "exports", "id": step.id})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, step.call, step.id+":", a["allowed"] != false)
	}
	return nil
}

// post asks for one thing. A denial, 429, is an answer like another.
func post(url, call string, body any) (answer map[string]any, err error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	resp, err := http.Post(url+"/v1/"+call, "application/json", bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
		return nil, fmt.Errorf("%s: %d, %v", call, resp.StatusCode, answer["error"])
	}
	return answer, nil
}

// start starts a server in this process, as a Go program would that serves beside what it does.
func start(limits string) (url string, closeServer func(), err error) {
	policy, err := limitsyaml.Load(limits)
	if err != nil {
		return "", nil, err
	}
	m, err := miniredis.Run()
	if err != nil {
		return "", nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		return "", nil, err
	}
	handler, err := serve.New(serve.Config{Limiter: limiter})
	if err != nil {
		return "", nil, err
	}
	server := httptest.NewServer(handler) // on the loopback: beyond it, serve.Config needs Clients
	return server.URL, func() { server.Close(); _ = rdb.Close(); m.Close() }, nil
}
