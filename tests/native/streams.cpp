// Streams by themselves: the driver gives the number of one that is gone again, which the simulated one never does.
#include "core/streams.hpp"

#include <thread>
#include <vector>

#include "native/sim.hpp"

namespace arena {
namespace {

using test::Sim;

// Told of, or its front would go on to give what it keeps to another stream of that number.
void check_that_it_is_forgotten(void (*notice)(Streams& streams, Mark mark)) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    std::vector<StreamIndex> forgotten;
    Streams streams(device, [&](StreamIndex index) { forgotten.push_back(index); });
    const cu::Stream stream = device.new_stream();
    const StreamIndex index = streams.index(key_of(stream));
    const Mark mark = streams.mark(index);
    CHECK(!streams.any_capturing() && forgotten.empty());
    device.delete_stream(stream);
    notice(streams, mark);
    CHECK(forgotten == std::vector{index});
    CHECK(streams.index(key_of(stream)) != index && !streams.reached(mark));
  }
  sim.check_all_returned();
}

TEST(a_stream_that_is_gone_is_forgotten_when_it_is_asked_about_a_capture) {
  check_that_it_is_forgotten([](Streams& streams, Mark) { CHECK(!streams.any_capturing()); });
}

TEST(a_stream_that_is_gone_is_forgotten_when_it_is_asked_about_its_work) {
  check_that_it_is_forgotten([](Streams& streams, Mark mark) { CHECK(!streams.poll(Marks(mark))); });
}

// But only when its work is done: what it freed is known by its index until then.
TEST(the_own_stream_of_a_thread_that_has_ended_makes_room_for_another) {
  const Sim sim;
  {
    const Device device(sim.driver(), 0);
    Streams streams(device, [](StreamIndex) {});
    Mark mark;
    std::thread([&] { mark = streams.mark(streams.index(key_of(cu::per_thread_stream()))); }).join();
    const std::vector<Streams::Gone> gone = streams.gone();
    CHECK(gone.size() == 1 && gone[0].index == mark.stream);
    streams.tidy(gone);
    const cu::Stream one = device.new_stream(), two = device.new_stream();
    CHECK(streams.index(key_of(one)) != mark.stream);
    streams.finish(streams.frees());
    streams.tidy(gone);
    CHECK(streams.index(key_of(two)) == mark.stream && streams.reached(mark));
    CHECK(!streams.reached(streams.mark(mark.stream)));
    for (const cu::Stream stream : {one, two}) device.delete_stream(stream);
  }
  sim.check_all_returned();
}

}  // namespace
}  // namespace arena
