package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"time"
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

var pickUpLine = regexp.MustCompile(`(?m)^headway_pickups_total(?:\{[^}]*\})? ([0-9.eE+]+)$`)

// pickUps reads from worker's metrics how often it has picked up tasks, of all queues.
func pickUps(metrics string) (sum float64, err error) {
	lines := pickUpLine.FindAllStringSubmatch(metrics, -1)
	if len(lines) == 0 {
		return 0, fmt.Errorf("worker's metrics hold no headway_pickups_total")
	}
	for _, m := range lines {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, fmt.Errorf("worker's metrics: %q: %w", m[0], err)
		}
		sum += n
	}
	return sum, nil
}
