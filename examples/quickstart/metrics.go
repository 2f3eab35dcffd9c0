package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/test/checker"
)

// fetch returns the body of a page that answers 200.
func fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 16<<20))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, res.Status)
	}
	return string(body), err
}

var pickUpLine = regexp.MustCompile(`(?m)^headway_pickups_total(?:\{(?:[^}]*,)?queue="([^"]*)"[^}]*\})? ([0-9.eE+]+)$`)

// pickUps reads worker's count of pick-ups by queue from its metrics.
func pickUps(metrics string) (map[string]float64, error) {
	counts := map[string]float64{}
	for _, m := range pickUpLine.FindAllStringSubmatch(metrics, -1) {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("worker's metrics: %q: %w", m[0], err)
		}
		counts[m[1]] += n
	}
	if len(counts) == 0 {
		return nil, fmt.Errorf("worker's metrics hold no headway_pickups_total")
	}
	return counts, nil
}

// byScope turns counts by queue into counts by scope, for every level: a queue
// counts for a scope when all its tasks stand under it. Scopes that share a
// queue with others are left out, since their part in it is not known.
func byScope(byQueue map[string]float64, tasks []checker.Task) map[string]float64 {
	var all float64
	for _, n := range byQueue {
		all += n
	}
	counts := map[string]float64{"": all}
	inQueue, both := map[string]int{}, map[[2]string]int{} // tasks by queue, and by scope and queue
	for _, t := range tasks {
		inQueue[t.Queue]++
		for _, scope := range levels(t.Scope) {
			both[[2]string{scope, t.Queue}]++
		}
	}
	mixed := map[string]bool{}
	for at, n := range both {
		scope, queue := at[0], at[1]
		counts[scope] += byQueue[queue]
		mixed[scope] = mixed[scope] || n < inQueue[queue]
	}
	for scope, m := range mixed {
		if m {
			delete(counts, scope)
		}
	}
	return counts
}

// levels returns the scope and all that it stands under.
func levels(scope string) []string {
	names := strings.Split(scope, "/")
	for i := range names {
		if i > 0 {
			names[i] = names[i-1] + "/" + names[i]
		}
	}
	return names
}
