// What the Go client of NATS can do with a broker: one check a run. See test_clients.py.
//
//	matrix CHECK        NATS_URL, NATS_TOKEN, NATS_USER, NATS_PASSWORD, NATS_CA
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	count    = 100
	deadline = 10 * time.Second
)

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(holds bool, what string) {
	if !holds {
		check(errors.New("not so: " + what))
	}
}

func dial(more ...nats.Option) (*nats.Conn, error) {
	options := append([]nats.Option{nats.ReconnectWait(50 * time.Millisecond), nats.MaxReconnects(200)}, more...)
	if token := os.Getenv("NATS_TOKEN"); token != "" {
		options = append(options, nats.Token(token))
	}
	if user := os.Getenv("NATS_USER"); user != "" {
		options = append(options, nats.UserInfo(user, os.Getenv("NATS_PASSWORD")))
	}
	if authority := os.Getenv("NATS_CA"); authority != "" {
		options = append(options, nats.RootCAs(authority))
	}
	return nats.Connect(os.Getenv("NATS_URL"), options...)
}

func connect() *nats.Conn { return must(dial()) }

func publishNumbers(client *nats.Conn, subject string) {
	for n := 0; n < count; n++ {
		check(client.Publish(subject, []byte(strconv.Itoa(n))))
	}
	check(client.FlushTimeout(deadline))
}

func pubsub() {
	one, other := connect(), connect()
	subscription := must(one.SubscribeSync("pubsub.*"))
	check(one.FlushTimeout(deadline))
	publishNumbers(other, "pubsub.go")
	for n := 0; n < count; n++ {
		message := must(subscription.NextMsg(deadline))
		expect(string(message.Data) == strconv.Itoa(n), "messages come in order")
	}
	one.Close()
	other.Close()
}

func queue() {
	members := []*nats.Conn{connect(), connect()}
	subscriptions := []*nats.Subscription{}
	for _, member := range members {
		subscriptions = append(subscriptions, must(member.QueueSubscribeSync("queue", "workers")))
		check(member.FlushTimeout(deadline))
	}
	publisher := connect()
	publishNumbers(publisher, "queue")
	seen := map[string]bool{}
	for k, member := range members {
		check(member.FlushTimeout(deadline))
		pending, _, err := subscriptions[k].Pending()
		check(err)
		expect(pending > 0, "both members get some")
		for ; pending > 0; pending-- {
			data := string(must(subscriptions[k].NextMsg(deadline)).Data)
			expect(!seen[data], "each message comes once")
			seen[data] = true
		}
	}
	expect(len(seen) == count, "every message comes")
}

func request() {
	one, other := connect(), connect()
	must(one.Subscribe("service", func(message *nats.Msg) {
		check(message.Respond(append([]byte("re "), message.Data...)))
	}))
	check(one.FlushTimeout(deadline))
	for n := 0; n < count; n++ {
		answer := must(other.Request("service", []byte(strconv.Itoa(n)), deadline))
		expect(string(answer.Data) == "re "+strconv.Itoa(n), "the answer comes")
	}
	_, err := other.Request("nobody", nil, deadline)
	expect(errors.Is(err, nats.ErrNoResponders), "a request that nobody answers fails at once")
}

func headers() {
	client := connect()
	subscription := must(client.SubscribeSync("headers"))
	message := nats.NewMsg("headers")
	message.Data = []byte("body")
	message.Header.Add("Kind", "test")
	message.Header.Add("Many", "a")
	message.Header.Add("Many", "b")
	check(client.PublishMsg(message))
	got := must(subscription.NextMsg(deadline))
	expect(got.Header.Get("Kind") == "test" && len(got.Header.Values("Many")) == 2, "headers come")
	expect(string(got.Data) == "body", "the body comes")
}

func drain() {
	closed := make(chan bool)
	one := must(dial(nats.ClosedHandler(func(*nats.Conn) { close(closed) })))
	other := connect()
	var got atomic.Int32
	must(one.Subscribe("drain", func(*nats.Msg) { got.Add(1) }))
	check(one.FlushTimeout(deadline))
	publishNumbers(other, "drain")
	check(one.Drain())
	select {
	case <-closed:
	case <-time.After(deadline):
		expect(false, "a drained connection closes")
	}
	expect(got.Load() == count, "everything comes before the end")
}

func reconnect() {
	client := must(dial(
		nats.ReconnectHandler(func(*nats.Conn) { fmt.Println("RECONNECTED") }),
		nats.DiscoveredServersHandler(func(c *nats.Conn) { fmt.Println("TOLD", c.DiscoveredServers()) }),
		nats.LameDuckModeHandler(func(*nats.Conn) { fmt.Println("LAMEDUCK") }),
	))
	subscription := must(client.SubscribeSync("reconnect"))
	check(client.FlushTimeout(deadline))
	fmt.Println("READY")
	for last := false; !last; {
		message := must(subscription.NextMsg(6 * deadline))
		fmt.Println("GOT", string(message.Data))
		last = string(message.Data) == "last"
	}
}

func refused() {
	_, err := dial(nats.NoReconnect())
	expect(errors.Is(err, nats.ErrAuthorization), "the broker refuses this client")
}

func main() {
	checks := map[string]func(){
		"pubsub": pubsub, "queue": queue, "request": request, "headers": headers,
		"drain": drain, "reconnect": reconnect, "refused": refused,
	}
	checks[os.Args[1]]()
	fmt.Println("OK")
}
