// What the C client of NATS can do with a broker: one check a run. See test_clients.py.
//
//   matrix CHECK        NATS_URL, NATS_TOKEN, NATS_USER, NATS_PASSWORD, NATS_CA
#include <nats/nats.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 100, DEADLINE_MS = 10000 };

static void must(natsStatus status, const char *what) {
    if (status != NATS_OK) {
        fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
        exit(1);
    }
}

static void expect(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

static void on_reconnected(natsConnection *connection, void *closure) {
    (void)connection;
    (void)closure;
    puts("RECONNECTED");
}

static void on_discovered(natsConnection *connection, void *closure) {
    char **servers = NULL;
    int count = 0;
    (void)closure;
    must(natsConnection_GetDiscoveredServers(connection, &servers, &count), "discovered servers");
    for (int k = 0; k < count; k++) {
        printf("TOLD %s\n", servers[k]);
        free(servers[k]);
    }
    free(servers);
}

static void on_lame_duck(natsConnection *connection, void *closure) {
    (void)connection;
    (void)closure;
    puts("LAMEDUCK");
}

static natsStatus try_connect(natsConnection **connection, bool reconnects) {
    natsOptions *options = NULL;
    must(natsOptions_Create(&options), "options");
    must(natsOptions_SetURL(options, getenv("NATS_URL")), "url");
    must(natsOptions_SetAllowReconnect(options, reconnects), "reconnect");
    must(natsOptions_SetReconnectWait(options, 50), "reconnect wait");
    must(natsOptions_SetMaxReconnect(options, 200), "reconnect attempts");
    must(natsOptions_SetReconnectedCB(options, on_reconnected, NULL), "reconnected");
    must(natsOptions_SetDiscoveredServersCB(options, on_discovered, NULL), "discovered servers");
    must(natsOptions_SetLameDuckModeCB(options, on_lame_duck, NULL), "lame duck mode");
    if (getenv("NATS_TOKEN")) must(natsOptions_SetToken(options, getenv("NATS_TOKEN")), "token");
    if (getenv("NATS_USER")) must(natsOptions_SetUserInfo(options, getenv("NATS_USER"), getenv("NATS_PASSWORD")), "user");
    if (getenv("NATS_CA")) {
        must(natsOptions_SetSecure(options, true), "tls");
        must(natsOptions_LoadCATrustedCertificates(options, getenv("NATS_CA")), "authority");
    }
    natsStatus status = natsConnection_Connect(connection, options);
    natsOptions_Destroy(options);
    return status;
}

static natsConnection *connection(void) {
    natsConnection *made = NULL;
    must(try_connect(&made, true), "connect");
    return made;
}

static void publish_numbers(natsConnection *client, const char *subject) {
    char text[16];
    for (int n = 0; n < COUNT; n++) {
        snprintf(text, sizeof text, "%d", n);
        must(natsConnection_PublishString(client, subject, text), "publish");
    }
    must(natsConnection_FlushTimeout(client, DEADLINE_MS), "flush");
}

static void expect_numbers(natsSubscription *subscription) {
    for (int n = 0; n < COUNT; n++) {
        natsMsg *message = NULL;
        must(natsSubscription_NextMsg(&message, subscription, DEADLINE_MS), "next message");
        expect(atoi(natsMsg_GetData(message)) == n, "messages come in order");
        natsMsg_Destroy(message);
    }
}

static void pubsub(void) {
    natsConnection *one = connection(), *other = connection();
    natsSubscription *subscription = NULL;
    must(natsConnection_SubscribeSync(&subscription, one, "pubsub.*"), "subscribe");
    must(natsConnection_FlushTimeout(one, DEADLINE_MS), "flush");
    publish_numbers(other, "pubsub.c");
    expect_numbers(subscription);
    natsSubscription_Destroy(subscription);
    natsConnection_Destroy(one);
    natsConnection_Destroy(other);
}

static void queue(void) {
    natsConnection *members[2] = {connection(), connection()}, *publisher = connection();
    natsSubscription *subscriptions[2];
    bool seen[COUNT] = {false};
    int counts[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        must(natsConnection_QueueSubscribeSync(&subscriptions[k], members[k], "queue", "workers"), "subscribe");
        must(natsConnection_FlushTimeout(members[k], DEADLINE_MS), "flush");
    }
    publish_numbers(publisher, "queue");
    for (int k = 0; k < 2; k++) {
        natsMsg *message = NULL;
        must(natsConnection_FlushTimeout(members[k], DEADLINE_MS), "flush");
        while (natsSubscription_NextMsg(&message, subscriptions[k], 1) == NATS_OK) {
            int n = atoi(natsMsg_GetData(message));
            expect(!seen[n], "each message comes once");
            seen[n] = true;
            counts[k]++;
            natsMsg_Destroy(message);
        }
    }
    expect(counts[0] + counts[1] == COUNT, "every message comes");
    expect(counts[0] > 0 && counts[1] > 0, "both members get some");
    for (int k = 0; k < 2; k++) {
        natsSubscription_Destroy(subscriptions[k]);
        natsConnection_Destroy(members[k]);
    }
    natsConnection_Destroy(publisher);
}

static void on_request(natsConnection *client, natsSubscription *subscription, natsMsg *message, void *closure) {
    (void)subscription;
    (void)closure;
    must(natsConnection_PublishString(client, natsMsg_GetReply(message), "answer"), "respond");
    natsMsg_Destroy(message);
}

static void request(void) {
    natsConnection *one = connection(), *other = connection();
    natsSubscription *subscription = NULL;
    natsMsg *answer = NULL;
    must(natsConnection_Subscribe(&subscription, one, "service", on_request, NULL), "subscribe");
    must(natsConnection_FlushTimeout(one, DEADLINE_MS), "flush");
    for (int n = 0; n < COUNT; n++) {
        must(natsConnection_RequestString(&answer, other, "service", "question", DEADLINE_MS), "request");
        expect(strcmp(natsMsg_GetData(answer), "answer") == 0, "the answer comes");
        natsMsg_Destroy(answer);
    }
    expect(natsConnection_RequestString(&answer, other, "nobody", "", DEADLINE_MS) == NATS_NO_RESPONDERS,
           "a request that nobody answers fails at once");
    natsSubscription_Destroy(subscription);
    natsConnection_Destroy(one);
    natsConnection_Destroy(other);
}

static void headers(void) {
    natsConnection *client = connection();
    natsSubscription *subscription = NULL;
    natsMsg *message = NULL;
    const char *value = NULL;
    must(natsConnection_SubscribeSync(&subscription, client, "headers"), "subscribe");
    must(natsMsg_Create(&message, "headers", NULL, "body", 4), "message");
    must(natsMsgHeader_Add(message, "Kind", "test"), "header");
    must(natsConnection_PublishMsg(client, message), "publish");
    natsMsg_Destroy(message);
    must(natsSubscription_NextMsg(&message, subscription, DEADLINE_MS), "next message");
    must(natsMsgHeader_Get(message, "Kind", &value), "header");
    expect(strcmp(value, "test") == 0 && strncmp(natsMsg_GetData(message), "body", 4) == 0, "header and body come");
    natsMsg_Destroy(message);
    natsSubscription_Destroy(subscription);
    natsConnection_Destroy(client);
}

static void on_counted(natsConnection *client, natsSubscription *subscription, natsMsg *message, void *closure) {
    (void)client;
    (void)subscription;
    (*(int *)closure)++;
    natsMsg_Destroy(message);
}

static void drain(void) {
    natsConnection *one = connection(), *other = connection();
    natsSubscription *subscription = NULL;
    int count = 0;
    must(natsConnection_Subscribe(&subscription, one, "drain", on_counted, &count), "subscribe");
    must(natsConnection_FlushTimeout(one, DEADLINE_MS), "flush");
    publish_numbers(other, "drain");
    must(natsConnection_DrainTimeout(one, DEADLINE_MS), "drain");
    must(natsSubscription_WaitForDrainCompletion(subscription, DEADLINE_MS), "drained");
    expect(count == COUNT, "everything comes before the end");
    natsSubscription_Destroy(subscription);
    natsConnection_Destroy(one);
    natsConnection_Destroy(other);
}

static void reconnect(void) {
    natsConnection *client = connection();
    natsSubscription *subscription = NULL;
    bool is_last = false;
    must(natsConnection_SubscribeSync(&subscription, client, "reconnect"), "subscribe");
    must(natsConnection_FlushTimeout(client, DEADLINE_MS), "flush");
    puts("READY");
    while (!is_last) {
        natsMsg *message = NULL;
        must(natsSubscription_NextMsg(&message, subscription, 6 * DEADLINE_MS), "next message");
        printf("GOT %.*s\n", natsMsg_GetDataLength(message), natsMsg_GetData(message));
        is_last = natsMsg_GetDataLength(message) == 4 && strncmp(natsMsg_GetData(message), "last", 4) == 0;
        natsMsg_Destroy(message);
    }
    natsSubscription_Destroy(subscription);
    natsConnection_Destroy(client);
}

static void refused(void) {
    natsConnection *client = NULL;
    expect(try_connect(&client, false) == NATS_CONNECTION_AUTH_FAILED, "the broker refuses this client");
}

static const struct {
    const char *name;
    void (*run)(void);
} CHECKS[] = {{"pubsub", pubsub}, {"queue", queue}, {"request", request},     {"headers", headers},
              {"drain", drain},   {"reconnect", reconnect}, {"refused", refused}};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t k = 0; argc == 2 && k < sizeof CHECKS / sizeof *CHECKS; k++) {
        if (strcmp(CHECKS[k].name, argv[1]) == 0) {
            CHECKS[k].run();
            puts("OK");
            nats_Close();
            return 0;
        }
    }
    fprintf(stderr, "usage: matrix CHECK\n");
    return 2;
}
